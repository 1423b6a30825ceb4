package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// WriteFile makes or replaces a file of mode 0600 so that after a crash it is either the old or the new one, complete.
func WriteFile(path string, data []byte) error {
	return writeFile(path, data, fileOptions{})
}

// fileOptions are how a file differs from what WriteFile makes.
type fileOptions struct {
	group   *int // that may read it; nil: none. Nobody sees the file before it has its owner and mode
	passing bool // nobody reads it after a crash: it is not synced
}

func writeFile(path string, data []byte, opts fileOptions) error {
	tmp := path + ".tmp"
	if err := os.Remove(tmp); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a crash
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
	if opts.passing {
		return nil
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer dir.Close()
	if err := dir.Sync(); err != nil {
		return fmt.Errorf("write %s: sync directory: %w", path, err)
	}
	return nil
}

func writeWhole(path string, data []byte, opts fileOptions) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if opts.group != nil {
		err = errors.Join(f.Chown(-1, *opts.group), f.Chmod(0o640))
	}
	if err == nil {
		_, err = f.Write(data)
	}
	if err == nil && !opts.passing {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
