package kubelith

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/snapshot"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
	"kubelith.io/kubelith/components/node"
)

// hasStore reports whether snapshots are copied to a store.
func hasStore(cfg *config.Server) bool { return cfg.SnapshotS3Bucket != "" }

func openStore(cfg *config.Server) (*bucket.Bucket, error) {
	return bucket.Open(node.StoreOptions(cfg))
}

// inStore begins the names of snapshots that are read from the store although the directory may have them, too.
const inStore = "s3:"

// saveFile saves a snapshot in the directory and then in the store, which may be away.
func saveFile(c *cli.Context, cfg *config.Server, source snapshot.Source, name string, bar *progress) error {
	f, err := snapshot.SaveFile(c.Context, source, cfg.SnapshotDir, name)
	if err != nil {
		bar.end()
		return err
	}
	copied := ""
	if hasStore(cfg) {
		copied, err = upload(c, cfg, f, bar)
	}
	bar.end()
	if err != nil {
		return fmt.Errorf("%s is saved and tested, but not copied to the store: %w", f.Path, err)
	}
	_, err = fmt.Fprintf(c.App.Writer, "%s, %s, restored once to test it%s%s\n", f.Path, bytesOf(f.Bytes), copied, unencrypted(f.Header))
	return err
}

func upload(c *cli.Context, cfg *config.Server, f snapshot.File, bar *progress) (copied string, err error) {
	store, err := openStore(cfg)
	if err != nil {
		return "", err
	}
	defer store.Close()
	return ", copied to " + store.URL(f.Name()+snapshot.Suffix), snapshot.Upload(c.Context, store, f, bar.at)
}

// listSnapshots lists those of the directory also when the store is away.
func listSnapshots(c *cli.Context, cfg *config.Server) error {
	if err := noArguments(c); err != nil {
		return err
	}
	all, err := snapshot.List(cfg.SnapshotDir)
	if err != nil {
		return err
	}
	var away error
	if hasStore(cfg) {
		var there []snapshot.File
		there, away = listStore(c, cfg)
		all = snapshot.Merge(all, there)
	}
	if wantsJSON(c) {
		return errors.Join(writeJSON(c.App.Writer, append([]snapshot.File{}, all...)), away)
	}
	return errors.Join(listText(c.App.Writer, all, hasStore(cfg) && away == nil), away)
}

func listStore(c *cli.Context, cfg *config.Server) ([]snapshot.File, error) {
	store, err := openStore(cfg)
	if err != nil {
		return nil, err
	}
	defer store.Close()
	return snapshot.ListStore(c.Context, store)
}

// listText writes a table. With a store it has a column that shows where each is.
func listText(out io.Writer, all []snapshot.File, withStore bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	line := func(columns ...string) { fmt.Fprintln(w, strings.Join(columns, "\t")) }
	heads := []string{"NAME", "AGE", "SIZE", "KUBERNETES", "ENCRYPTED"}
	if withStore {
		heads = append(heads, "IN")
	}
	line(heads...)
	for _, f := range all {
		columns := []string{f.Name(), "", bytesOf(f.Bytes), "", f.Fault}
		if f.Fault == "" {
			encrypted := "no"
			if f.Encryption != "" {
				encrypted = f.Encryption
			}
			columns = []string{f.Name(), time.Since(f.Created).Round(time.Second).String(), bytesOf(f.Bytes), f.Kubernetes, encrypted}
		}
		if withStore {
			columns = append(columns, placesOf(f))
		}
		line(columns...)
	}
	return w.Flush()
}

func placesOf(f snapshot.File) string {
	switch {
	case f.Store == "":
		return "directory"
	case f.Path == "":
		return "store"
	}
	return "both"
}

// deleteSnapshots deletes in the store first: while that is away, nothing is deleted.
func deleteSnapshots(c *cli.Context, cfg *config.Server) error {
	if !c.Args().Present() {
		return errors.New("snapshot delete needs the names of snapshots: kubelith snapshot list shows them")
	}
	var store *bucket.Bucket
	if hasStore(cfg) {
		var err error
		if store, err = openStore(cfg); err != nil {
			return err
		}
		defer store.Close()
	}
	var errs []error
	for _, name := range c.Args().Slice() {
		err := deleteSnapshot(c, cfg, store, name)
		if err == nil {
			fmt.Fprintf(c.App.Writer, "snapshot %s deleted\n", name)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func deleteSnapshot(c *cli.Context, cfg *config.Server, store *bucket.Bucket, name string) error {
	file, err := findFile(cfg, name)
	if err != nil && store == nil {
		return err
	}
	if err != nil {
		object, _, err := findObject(c, cfg, store, name)
		if err != nil {
			return err
		}
		return store.Delete(c.Context, object)
	}
	if filepath.Dir(file) != filepath.Clean(cfg.SnapshotDir) {
		return fmt.Errorf("%s is not in %s: remove it with rm", file, cfg.SnapshotDir)
	}
	if store != nil {
		info, err := os.Stat(file)
		if err != nil {
			return err
		}
		size, err := store.Size(c.Context, filepath.Base(file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && size == info.Size() { // another cluster may have one of this name
			if err := store.Delete(c.Context, filepath.Base(file)); err != nil {
				return err
			}
		}
	}
	return os.Remove(file)
}

// pruneSnapshots deletes in the store first: while that is away, nothing is deleted.
func pruneSnapshots(c *cli.Context, cfg *config.Server) error {
	if err := noArguments(c); err != nil {
		return err
	}
	if cfg.SnapshotRetention < 1 {
		return fmt.Errorf("--snapshot-retention %d: keep at least 1 scheduled snapshot", cfg.SnapshotRetention)
	}
	settings, err := datadir.ReadSettings(cfg.DataDir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s has no cluster, so there are no snapshots to prune: give the server's --data-dir", cfg.DataDir)
	}
	if err != nil {
		return err
	}
	if hasStore(cfg) {
		if err := pruneStore(c, cfg, settings.NodeName); err != nil {
			return err
		}
	}
	deleted, err := snapshot.Prune(cfg.SnapshotDir, cfg.DataDir, settings.NodeName, cfg.SnapshotRetention)
	for _, f := range deleted {
		fmt.Fprintf(c.App.Writer, "snapshot %s deleted\n", f.Name())
	}
	return err
}

func pruneStore(c *cli.Context, cfg *config.Server, node string) error {
	store, err := openStore(cfg)
	if err != nil {
		return err
	}
	defer store.Close()
	deleted, err := snapshot.PruneStore(c.Context, store, cfg.DataDir, node, cmp.Or(cfg.SnapshotS3Retention, cfg.SnapshotRetention))
	for _, f := range deleted {
		fmt.Fprintf(c.App.Writer, "snapshot %s deleted in the store\n", f.Name())
	}
	return err
}
