// Package atomicfile replaces files so that after a crash each is either the old or the new one, complete. ADR 034 says
// why we use no library.
package atomicfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Options are how a file differs from a durable one of mode 0600.
type Options struct {
	Group   *int // that may read it; nil: none. The file is invisible until it has its owner and mode
	Passing bool // the file is not needed after a crash: it is not synced
}

// Write creates or replaces a file of mode 0600. When it returns, the file survives a power cut. A crash leaves
// PATH.tmp, which the next Write replaces.
func Write(path string, data []byte) error {
	return WriteWith(path, data, Options{})
}

// WriteWith is Write with options.
func WriteWith(path string, data []byte, opts Options) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // left by a crash
		return fmt.Errorf("write %s: %w", path, err)
	}
	err := writeWhole(tmp, data, opts)
	if err == nil {
		err = os.Rename(tmp, path)
	}
	if err != nil {
		_ = os.Remove(tmp)
		return fmt.Errorf("write %s: %w", path, err)
	}
	if opts.Passing {
		return nil
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: sync directory: %w", path, err)
	}
	return nil
}

// SyncDir makes the names in a directory, such as that of a renamed file, survive a power cut.
func SyncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func writeWhole(path string, data []byte, opts Options) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if opts.Group != nil {
		err = errors.Join(f.Chown(-1, *opts.Group), f.Chmod(0o640))
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil && !opts.Passing {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
