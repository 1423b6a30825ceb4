package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// temporary is the start of the names of files that are being written.
const temporary = ".kubelith-new-"

// directory is a store in a directory, whose files are the objects.
type directory struct{ root, top string }

func (d *directory) path(key string) string { return filepath.Join(d.root, filepath.FromSlash(key)) }

// Check implements Store.
func (d *directory) Check(context.Context) error {
	if info, err := os.Stat(d.top); err != nil || !info.IsDir() {
		return fmt.Errorf("the directory %s of the store cannot be used: create or mount it (%v)", d.top, err)
	}
	return nil
}

// Stat implements Store.
func (d *directory) Stat(_ context.Context, key string) (Info, error) {
	info, err := os.Lstat(d.path(key))
	if errors.Is(err, unix.ENOTDIR) {
		err = ErrNotExist
	}
	if err != nil {
		return Info{}, err
	}
	if info.IsDir() != (Info{Key: key}).Dir() {
		return Info{}, ErrNotExist
	}
	return infoOf(key, info), nil
}

// infoOf a file.
func infoOf(key string, info fs.FileInfo) Info {
	i := Info{Key: key, Meta: Meta{Known: true, Mode: uint32(info.Mode().Perm()), Time: info.ModTime()}}
	i.UID, i.GID, i.Tag = ownerOf(info.Sys())
	if !info.IsDir() {
		i.Size = info.Size()
	}
	return i
}

// List implements Store.
func (d *directory) List(_ context.Context, dir string, recursive bool, f func(Info) error) error {
	entries, err := os.ReadDir(d.path(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a prefix without objects
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(e.Name(), temporary) || err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			continue
		}
		if err != nil {
			return err
		}
		key := dir + e.Name()
		if e.IsDir() {
			key += "/"
		}
		if err := f(infoOf(key, info)); err != nil {
			return err
		}
		if recursive && e.IsDir() {
			if err := d.List(context.Background(), key, true, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Read implements Store.
func (d *directory) Read(_ context.Context, key, tag string, offset int64, p []byte) error {
	f, err := os.Open(d.path(key))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if tag != "" && infoOf(key, info).Tag != tag {
		return ErrChanged
	}
	if _, err = f.ReadAt(p, offset); errors.Is(err, io.EOF) {
		return ErrChanged
	}
	return err
}

// Put implements Store.
func (d *directory) Put(_ context.Context, key string, content io.ReaderAt, size int64, meta Meta) (Info, error) {
	path := d.path(key)
	if (Info{Key: key}).Dir() {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return Info{}, err
		}
		return d.change(key, meta)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return Info{}, err
	}
	f, err := os.CreateTemp(filepath.Dir(path), temporary)
	if err != nil {
		return Info{}, err
	}
	defer os.Remove(f.Name())
	if size > 0 {
		_, err = io.Copy(f, io.NewSectionReader(content, 0, size))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return Info{}, err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return Info{}, err
	}
	return d.change(key, meta)
}

// change sets the metadata of a file.
func (d *directory) change(key string, meta Meta) (Info, error) {
	path := d.path(key)
	err := os.Chmod(path, fs.FileMode(meta.Mode)&fs.ModePerm)
	if os.Geteuid() == 0 {
		err = errors.Join(err, os.Chown(path, int(meta.UID), int(meta.GID)))
	}
	if err = errors.Join(err, os.Chtimes(path, meta.Time, meta.Time)); err != nil {
		return Info{}, err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return Info{}, err
	}
	return infoOf(key, info), nil
}

// Copy implements Store.
func (d *directory) Copy(ctx context.Context, from, to string, meta Meta) (Info, error) {
	if from == to || (Info{Key: from}).Dir() {
		if from != to {
			return d.Put(ctx, to, nil, 0, meta)
		}
		return d.change(to, meta)
	}
	f, err := os.Open(d.path(from))
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Info{}, err
	}
	return d.Put(ctx, to, f, info.Size(), meta)
}

// Delete implements Store.
func (d *directory) Delete(_ context.Context, key string) error {
	err := os.Remove(d.path(key))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}
