package kubelith

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"github.com/urfave/cli/v2"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/controlplane/snapshot"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
)

// findFile returns the path of a snapshot by its name or path.
func findFile(cfg *config.Server, name string) (string, error) {
	paths := []string{filepath.Join(cfg.SnapshotDir, name+snapshot.Suffix), filepath.Join(cfg.SnapshotDir, name)}
	if strings.Contains(name, "/") || strings.HasSuffix(name, snapshot.Suffix) {
		paths = append(paths, name)
	}
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return filepath.Clean(path), nil
		}
	}
	if strings.HasPrefix(name, inStore) && !hasStore(cfg) {
		return "", fmt.Errorf("%s: there is no store: name its bucket with --snapshot-s3-bucket, or in the configuration", name)
	}
	return "", noSnapshot(name, cfg.SnapshotDir)
}

// findObject returns the name of a snapshot in the store, and its size.
func findObject(c *cli.Context, cfg *config.Server, store *bucket.Bucket, name string) (object string, size int64, err error) {
	name, only := strings.CutPrefix(name, inStore)
	where := cfg.SnapshotDir + " and " + store.URL("")
	if only {
		where = store.URL("")
	}
	if strings.Contains(name, "/") {
		return "", 0, noSnapshot(name, where)
	}
	object = strings.TrimSuffix(name, snapshot.Suffix) + snapshot.Suffix
	size, err = store.Size(c.Context, object)
	if errors.Is(err, fs.ErrNotExist) {
		return "", 0, noSnapshot(name, where)
	}
	return object, size, err
}

func noSnapshot(name, where string) error {
	return fmt.Errorf("there is no snapshot %q in %s: kubelith snapshot list shows the names; the path of a file needs a slash", name, where)
}

// opened is a snapshot to read.
type opened struct {
	io.Reader
	name   string
	keys   []age.Identity
	bar    *progress
	close  []func()
	failed error // of the store: what was read is not damaged
}

// Close closes the file or the store.
func (o *opened) Close() {
	for _, f := range o.close {
		f()
	}
}

// explain names the snapshot in an error.
func (o *opened) explain(err error) error {
	if o.failed != nil {
		err = o.failed
	}
	return fmt.Errorf("%s: %w", o.name, err)
}

// oneSnapshot returns the name that is the only argument.
func oneSnapshot(c *cli.Context) (string, error) {
	if c.NArg() != 1 {
		return "", fmt.Errorf("snapshot %s needs one snapshot, after its flags: its name, a file, or - for standard input", c.Command.Name)
	}
	return c.Args().First(), nil
}

// openSnapshot opens a snapshot by its name, its path, or as -.
func openSnapshot(c *cli.Context, cfg *config.Server, name, doing string) (_ *opened, err error) {
	passphrase := c.String("passphrase-file")
	if passphrase == "" {
		passphrase = cfg.SnapshotPassphraseFile
	}
	keys, err := snapshot.Identities(passphrase, c.String("identity"))
	if err != nil {
		return nil, err
	}
	o := &opened{keys: keys, bar: progressOn(c.App.ErrWriter)}
	if name == "-" {
		o.name, o.Reader = "the snapshot on standard input", c.App.Reader
		return o, nil
	}
	defer func() {
		if err != nil {
			o.Close()
		}
	}()
	var content io.ReadCloser
	var size int64
	o.name, err = findFile(cfg, name)
	switch {
	case err == nil:
		content, size, err = openFile(o.name)
	case hasStore(cfg):
		content, size, err = o.openObject(c, cfg, name)
	}
	if err != nil {
		return nil, err
	}
	o.close = append(o.close, func() { content.Close() })
	o.Reader = snapshot.Measure(&watchedReader{content, &o.failed}, doing, size, o.bar.at)
	return o, nil
}

func openFile(path string) (io.ReadCloser, int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, info.Size(), nil
}

func (o *opened) openObject(c *cli.Context, cfg *config.Server, name string) (io.ReadCloser, int64, error) {
	store, err := openStore(cfg)
	if err != nil {
		return nil, 0, err
	}
	o.close = append(o.close, store.Close)
	object, size, err := findObject(c, cfg, store, name)
	if err != nil {
		return nil, 0, err
	}
	o.name = store.URL(object)
	content, err := store.Get(c.Context, object, 0)
	return content, size, err
}

// watchedReader keeps the error with which reading has ended early.
type watchedReader struct {
	io.Reader
	failed *error
}

// Read implements io.Reader.
func (r *watchedReader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		*r.failed = err
	}
	return n, err
}
