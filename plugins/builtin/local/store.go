package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/moby/sys/mountinfo"

	"kubelith.io/kubelith/base/atomicfile"
)

// abandoned is the age of an unfinished volume at which another process removes it.
const abandoned = 10 * time.Minute

// Errors of a store.
var (
	errExists = errors.New("a volume of that name already exists with other properties")
	errRange  = errors.New("capacity range")
	errInUse  = errors.New("in use")
)

// noSpaceError reports that there is no space for a volume.
type noSpaceError struct{ want, free int64 }

func (e *noSpaceError) Error() string {
	return fmt.Sprintf("%d bytes are wanted, %d are free for volumes on this node", e.want, max(e.free, 0))
}

// store is the directory of volumes.
type store struct {
	dir   string
	limit int64 // total size of all volumes; 0: that of the file system
	// shared: the volumes are on the disk of the data directory, and of etcd.
	shared bool
	log    hclog.Logger
	used   used
	// mounts returns the mounts of the node; tests have a fake.
	mounts   func() ([]*mountinfo.Info, error)
	projects projects
	images   images
	// deleting are the goroutines that delete files, which may take minutes. They end with the process: the next one
	// deletes the rest.
	deleting sync.WaitGroup
}

func openStore(dir string, limit int64, log hclog.Logger) (*store, error) {
	// Only root may enter this directory; pods see the inside of a volume only.
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	real, err := filepath.EvalSymlinks(dir) // mountinfo has resolved paths
	if err != nil {
		return nil, err
	}
	s := &store{dir: real, limit: limit, log: log, mounts: readMounts, projects: kernelProjects{}, images: newExt4()}
	for _, d := range []string{s.path("volumes"), s.path("new"), s.path("trash")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, err
		}
	}
	s.logUnenforced()
	s.deleting.Go(s.sweep)
	return s, nil
}

// logUnenforced logs which volumes may grow beyond their size: directories, including those of earlier versions, and
// volumes with a quota if the disk is now mounted without quotas. They stay usable, as their pods could not start
// otherwise.
func (s *store) logUnenforced() {
	all, err := s.list()
	if err != nil {
		return // creating a volume reports it
	}
	var directories, quotas []string
	for _, v := range all {
		switch {
		case v.Enforcement == quota:
			quotas = append(quotas, v.ID)
		case v.Mode == filesystem && v.Enforcement != file:
			directories = append(directories, v.ID)
		}
	}
	if len(directories) > 0 {
		s.log.Info("volumes without a limit: their StorageClass says enforcement none, or an earlier version created them", "volumes", directories)
	}
	if len(quotas) == 0 {
		return
	}
	if err := s.projects.enforced(s.dir); err != nil {
		s.log.Warn("volumes have lost their limit: mount the disk with prjquota again", "volumes", quotas, "error", err.Error())
	}
}

func (s *store) path(name string) string         { return filepath.Join(s.dir, name) }
func (s *store) volumeDir(id string) string      { return filepath.Join(s.dir, "volumes", id) }
func (s *store) file(v *volume, n string) string { return filepath.Join(s.volumeDir(v.ID), n) }

// get returns a volume; the error is errNotFound if there is none.
func (s *store) get(id string) (*volume, error) {
	if !safeID.MatchString(id) {
		return nil, errNotFound
	}
	return readVolume(s.volumeDir(id))
}

// list returns all volumes, sorted by id. It skips and logs those that it cannot read.
func (s *store) list() ([]*volume, error) {
	entries, err := os.ReadDir(s.path("volumes"))
	if err != nil {
		return nil, err
	}
	var all []*volume
	for _, e := range entries {
		v, err := readVolume(s.volumeDir(e.Name()))
		if err != nil {
			if !errors.Is(err, errNotFound) {
				s.log.Warn("skipping an unreadable volume: repair or remove its directory", "volume", e.Name(), "error", err.Error())
			}
			continue
		}
		all = append(all, v)
	}
	return all, nil
}

// sizes is the range that a caller accepts, in bytes: at least min, at most max; 0: no bound.
type sizes struct{ min, max int64 }

// blockSize divides the size of a loop device.
const blockSize = 4096

// defaultSize of a volume if the request has none.
const defaultSize = 1 << 30

// choose returns the size for a volume of that mode.
func (r sizes) choose(m mode) (int64, error) {
	if r.min < 0 || r.max < 0 || r.max > 0 && r.min > r.max {
		return 0, fmt.Errorf("%w: at least %d and at most %d bytes", errRange, r.min, r.max)
	}
	size := r.min
	if size == 0 {
		size = defaultSize
		if r.max > 0 {
			size = min(size, r.max)
		}
	}
	if m == block {
		size = (size + blockSize - 1) / blockSize * blockSize
	}
	if size < 0 || r.max > 0 && size > r.max {
		return 0, fmt.Errorf("%w: the size of a block device is a multiple of %d bytes, at most %d are allowed", errRange, blockSize, r.max)
	}
	return size, nil
}

// holds reports whether an existing volume satisfies the request.
func (r sizes) holds(size int64) bool { return size >= r.min && (r.max == 0 || size <= r.max) }

// create creates a volume, or returns the one that an earlier call of the same request created.
func (s *store) create(ctx context.Context, want *volume, r sizes) (*volume, error) {
	var err error
	if want.Size, err = r.choose(want.Mode); err != nil {
		return nil, err
	}
	if want.Enforcement, err = s.enforcement(want.Enforcement, want.Mode); err != nil {
		if v, existing := s.existing(want, r); v != nil || existing != nil { // created while the node could enforce its size
			return v, existing
		}
		return nil, err
	}
	temp, err := s.prepare(ctx, want)
	if err != nil {
		return nil, err
	}
	defer s.destroy(temp) // does nothing once the volume has its name
	v, err := s.place(ctx, temp, want, r)
	if err != nil {
		return nil, err
	}
	return v, atomicfile.SyncDir(s.path("volumes"))
}

// prepare creates a volume on disk, complete except for its name.
func (s *store) prepare(ctx context.Context, v *volume) (dir string, err error) {
	if dir, err = os.MkdirTemp(s.path("new"), v.ID[:min(len(v.ID), 40)]+"-"); err != nil {
		return "", err
	}
	err = s.fill(ctx, v, dir)
	if err == nil {
		err = v.write(dir)
	}
	if err != nil {
		s.destroy(dir)
	}
	return dir, err
}

// place renames a prepared volume to its name, if there is space and the name is free.
func (s *store) place(ctx context.Context, temp string, want *volume, r sizes) (*volume, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if v, err := s.existing(want, r); v != nil || err != nil {
		return v, err
	}
	if err := s.room(want, 0, want.Size); err != nil {
		return nil, err
	}
	if err := s.enforce(want, temp); err != nil {
		return nil, err
	}
	return want, os.Rename(temp, s.volumeDir(want.ID))
}

// existing returns the volume of the wanted name; nil: there is none. The error is errExists if its properties differ.
func (s *store) existing(want *volume, r sizes) (*volume, error) {
	v, err := s.get(want.ID)
	switch {
	case errors.Is(err, errNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case v.Name != want.Name || v.Mode != want.Mode || !r.holds(v.Size):
		return nil, errExists
	}
	return v, nil
}

// room returns an error if there is no space for a new volume, or for a larger size of an existing one.
func (s *store) room(v *volume, from, to int64) error {
	free, err := s.free()
	if err != nil {
		return err
	}
	taken := int64(0)
	if from > 0 {
		taken = v.footprint(from)
	}
	if want := v.footprint(to) - taken; want > free.disk {
		return &noSpaceError{want: want, free: free.disk}
	}
	if to-from > free.promises {
		return &noSpaceError{want: to - from, free: free.promises}
	}
	return nil
}

// expand raises the size of a volume and its limit. A volume that is large enough does not change.
func (s *store) expand(ctx context.Context, id string, r sizes) (*volume, error) {
	unlock, err := s.lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	v, err := s.get(id)
	if err != nil {
		return nil, err
	}
	size, err := r.choose(v.Mode)
	if err != nil {
		return nil, err
	}
	if r.max > 0 && v.Size > r.max {
		return nil, fmt.Errorf("%w: the volume has %d bytes and cannot shrink to %d", errRange, v.Size, r.max)
	}
	if size <= v.Size {
		return v, nil
	}
	if err := s.room(v, v.Size, size); err != nil {
		return nil, err
	}
	if err := s.grow(v, size); err != nil {
		return nil, err
	}
	v.Size = size
	return v, v.write(s.volumeDir(id))
}

// remove deletes a volume that is not in use. The volume is gone when it returns; its files are deleted in the
// background.
func (s *store) remove(ctx context.Context, id string) error {
	v, unlockVolume, err := s.lockVolume(ctx, id)
	if errors.Is(err, errNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unlockVolume()
	if err := s.release(v); err != nil {
		return err
	}
	if err := s.nothingMountedBelow(s.volumeDir(id)); err != nil {
		return err
	}
	unlock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	trash := filepath.Join(s.path("trash"), fmt.Sprintf("%s-%d", id, time.Now().UnixNano()))
	if err := os.Rename(s.volumeDir(id), trash); err != nil {
		return err
	}
	s.used.forget(id)
	if err := errors.Join(atomicfile.SyncDir(s.path("trash")), atomicfile.SyncDir(s.path("volumes"))); err != nil {
		return err
	}
	s.deleting.Go(func() { s.discard(trash) })
	return nil
}

// release undoes staging, and returns an error if the volume is in use. Deleting calls it too: a kubelet that is killed
// after NodeUnpublishVolume never calls NodeUnstageVolume.
// Source: kubernetes/kubernetes#85476
func (s *store) release(v *volume) error {
	if v.Enforcement == file {
		if err := s.unmountImage(v); err != nil {
			return err
		}
	}
	mounts, err := s.mountsOf(v)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("%w: mounted at %s", errInUse, mounts[0].Mountpoint)
	}
	if v.Mode == block {
		return detachLoop(s.file(v, imageFile))
	}
	return nil // unmounting has detached the device of a file system
}

// discard deletes the files of a deleted volume. The next start deletes the rest if it fails.
func (s *store) discard(dir string) {
	if err := s.destroy(dir); err != nil {
		s.log.Warn("cannot delete files of a deleted volume, retrying at the next start", "error", err.Error())
	}
}

// destroy removes the directory of an unfinished volume, and its quota. A process that is killed in between leaves a
// limit on a project that no volume gets again.
func (s *store) destroy(dir string) error {
	v := volume{}
	if text, err := os.ReadFile(filepath.Join(dir, metaFile)); err == nil {
		_ = json.Unmarshal(text, &v) // damaged: without a project
	}
	if err := removeTree(dir); err != nil || v.Project == 0 {
		return err
	}
	return s.projects.limit(s.dir, v.Project, 0)
}

// sweep removes what earlier processes left.
func (s *store) sweep() {
	for _, name := range []string{"trash", "new"} {
		entries, err := os.ReadDir(s.path(name))
		if err != nil {
			s.log.Warn("cannot delete files of deleted volumes", "error", err.Error())
		}
		for _, e := range entries {
			info, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) || err == nil && name == "new" && time.Since(info.ModTime()) < abandoned {
				continue // gone, or being created by the process that this one replaces
			}
			s.discard(filepath.Join(s.path(name), e.Name()))
		}
	}
}

// page returns a page of the list, after the token of the previous page.
func page(all []*volume, token string, n int) (_ []*volume, next string, err error) {
	if token != "" {
		after, ok := strings.CutPrefix(token, "after:")
		if !ok {
			return nil, "", fmt.Errorf("token %q is not from this driver", token)
		}
		from, found := slices.BinarySearchFunc(all, after, func(v *volume, id string) int { return strings.Compare(v.ID, id) })
		if found {
			from++
		}
		all = all[from:]
	}
	if n > 0 && n < len(all) {
		all = all[:n]
		next = "after:" + all[n-1].ID
	}
	return all, next, nil
}
