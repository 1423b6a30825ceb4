package snapshot

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
)

var errForeignCluster = errors.New("of another cluster")

// Upload copies a snapshot of a directory to a store. It refuses to replace one of another cluster.
func Upload(ctx context.Context, b *bucket.Bucket, f File, progress func(step string, done, total int64)) error {
	content, err := os.Open(f.Path)
	if err != nil {
		return err
	}
	defer content.Close()
	name := f.Name() + Suffix
	there, err := headerIn(ctx, b, name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && !isFault(err):
		return err
	case err == nil && there.Cluster != f.Cluster:
		return fmt.Errorf("%s is %w: give each cluster its own --snapshot-s3-folder", b.URL(name), errForeignCluster)
	}
	var report func(int64)
	if progress != nil {
		report = func(done int64) { progress(StepUpload, done, f.Bytes) }
	}
	return b.Put(ctx, name, content, f.Bytes, report)
}

// isFault reports whether a file can be read and is no snapshot.
func isFault(err error) bool {
	var f fault
	return errors.As(err, &f)
}

// fault is a reason why the header of a file cannot be read.
type fault struct{ error }

// headerIn returns the header of a file in a store.
func headerIn(ctx context.Context, b *bucket.Bucket, name string) (Header, error) {
	r, err := b.Get(ctx, name, int64(len(magic)+maxHeader))
	if err != nil {
		return Header{}, err
	}
	defer r.Close()
	begin, err := io.ReadAll(r)
	if err != nil {
		return Header{}, err
	}
	h, err := ReadHeader(bytes.NewReader(begin))
	if err != nil {
		return h, fault{err}
	}
	return h, nil
}

// ListStore returns the snapshots of a store, the newest first.
func ListStore(ctx context.Context, b *bucket.Bucket) ([]File, error) {
	objects, err := b.List(ctx, Suffix)
	if err != nil {
		return nil, err
	}
	return filesIn(ctx, b, objects)
}

func filesIn(ctx context.Context, b *bucket.Bucket, objects []bucket.Object) ([]File, error) {
	var all []File
	for _, o := range objects {
		f := File{Store: b.URL(o.Name), Bytes: o.Bytes}
		h, err := headerIn(ctx, b, o.Name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case isFault(err):
			f.Fault = err.Error()
		case err != nil:
			return nil, err
		}
		f.Header = h
		all = append(all, f)
	}
	newestFirst(all)
	return all, nil
}

// Merge returns the snapshots of a directory and of a store; one that is in both once.
func Merge(here, there []File) []File {
	all := slices.Clone(here)
	for _, f := range there {
		i := slices.IndexFunc(all, func(other File) bool {
			return other.Name() == f.Name() && other.Bytes == f.Bytes && other.Cluster == f.Cluster
		})
		if i < 0 {
			all = append(all, f)
			continue
		}
		all[i].Store = f.Store
	}
	newestFirst(all)
	return all
}

// kinds are the names of snapshots that are pruned, and how many of each are kept.
type kinds map[string]int

// limited returns the files without those that are too many of a kind. all are the newest first. Those from the future
// count as the oldest: the clock was ahead when they were saved.
func (k kinds) limited(all []File, node string) (keep, rest []File) {
	now := time.Now()
	past := slices.DeleteFunc(slices.Clone(all), func(f File) bool { return f.Created.After(now) })
	ahead := slices.DeleteFunc(slices.Clone(all), func(f File) bool { return !f.Created.After(now) })
	left := map[string]int{}
	for _, f := range slices.Concat(past, ahead) {
		kind := ""
		for name := range k {
			if f.isOf(name, node) {
				kind = name
			}
		}
		if left[kind]++; kind != "" && left[kind] > k[kind] {
			rest = append(rest, f)
			continue
		}
		keep = append(keep, f)
	}
	return keep, rest
}

// sync copies to the store what is in the directory and not there, the oldest first, and then deletes there what is too
// much. It touches nothing of other clusters and other servers. uploaded is called with each; newest is the newest one
// that both have.
func (k kinds) sync(ctx context.Context, b *bucket.Bucket, dir, cluster, node string, uploaded func(File)) (newest File, err error) {
	here, err := List(dir)
	if err != nil {
		return newest, err
	}
	here = slices.DeleteFunc(here, func(f File) bool { return f.Fault != "" || f.Cluster != cluster })
	here, _ = k.limited(here, node)
	objects, err := b.List(ctx, Suffix)
	if err != nil {
		return newest, err
	}
	var taken error
	for _, f := range slices.Backward(here) {
		there := slices.Contains(objects, bucket.Object{Name: f.Name() + Suffix, Bytes: f.Bytes})
		if !there {
			switch err := Upload(ctx, b, f, nil); {
			case errors.Is(err, fs.ErrNotExist):
				continue // it was deleted meanwhile
			case errors.Is(err, errForeignCluster):
				taken = err
				continue
			case err != nil:
				return newest, fmt.Errorf("%s: %w", f.Name(), err)
			}
			f.Store = b.URL(f.Name() + Suffix)
			uploaded(f)
		}
		newest = f
	}
	_, err = k.prune(ctx, b, cluster, node)
	return newest, cmp.Or(err, taken)
}

// PruneStore deletes in a store all but the newest keep scheduled snapshots of a node. Those of other clusters stay.
func PruneStore(ctx context.Context, b *bucket.Bucket, dataDir, node string, keep int) (deleted []File, err error) {
	cluster, err := clusterOf(pki.Dir(dataDir))
	if err != nil {
		return nil, err
	}
	return kinds{Scheduled: keep}.prune(ctx, b, cluster, node)
}

// prune deletes what is too much in the store.
func (k kinds) prune(ctx context.Context, b *bucket.Bucket, cluster, node string) (deleted []File, err error) {
	objects, err := b.List(ctx, Suffix)
	if err != nil {
		return nil, err
	}
	// The names show which headers are worth a request.
	objects = slices.DeleteFunc(objects, func(o bucket.Object) bool {
		for name := range k {
			if strings.HasPrefix(o.Name, name+"-"+node+"-") {
				return false
			}
		}
		return true
	})
	if len(objects) <= slices.Min(slices.Collect(maps.Values(k))) {
		return nil, nil
	}
	files, err := filesIn(ctx, b, objects)
	if err != nil {
		return nil, err
	}
	files = slices.DeleteFunc(files, func(f File) bool { return f.Fault != "" || f.Cluster != cluster })
	_, rest := k.limited(files, node)
	for _, f := range rest {
		if err := b.Delete(ctx, f.Name()+Suffix); err != nil {
			return deleted, err
		}
		deleted = append(deleted, f)
	}
	return deleted, nil
}
