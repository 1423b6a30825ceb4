package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// temporary is the start of the names of files that are being written.
const temporary = ".kubelith-new-"

// directory is a store in a directory, whose files are the objects. Others can write to the directory: a symbolic link
// in it leads nowhere outside of the prefix.
type directory struct{ top, prefix string }

// open returns the directory of the prefix; it is created if it is to be written to.
func (d *directory) open(create bool) (*os.Root, error) {
	top, err := os.OpenRoot(d.top)
	if err != nil || d.prefix == "" {
		return top, err
	}
	defer top.Close()
	if create {
		if err := top.MkdirAll(d.prefix, 0o755); err != nil {
			return nil, err
		}
	}
	return top.OpenRoot(d.prefix)
}

// nameOf an object, as a file below the prefix.
func nameOf(key string) string { return path.Join(".", strings.TrimSuffix(key, "/")) }

// Check implements Store.
func (d *directory) Check(context.Context) error {
	if info, err := os.Stat(d.top); err != nil || !info.IsDir() {
		return fmt.Errorf("the directory %s of the store cannot be used: create or mount it (%v)", d.top, err)
	}
	return nil
}

// Stat implements Store.
func (d *directory) Stat(_ context.Context, key string) (Info, error) {
	root, err := d.open(false)
	if err != nil {
		return Info{}, err
	}
	defer root.Close()
	info, err := root.Lstat(nameOf(key))
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
	root, err := d.open(false)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // a prefix without objects
	}
	if err != nil {
		return err
	}
	defer root.Close()
	return list(root, dir, recursive, f)
}

func list(root *os.Root, dir string, recursive bool, f func(Info) error) error {
	file, err := root.Open(nameOf(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, err := file.Readdirnames(-1)
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	for _, name := range names {
		info, err := root.Lstat(nameOf(dir + name))
		if errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(name, temporary) || err == nil && !info.IsDir() && !info.Mode().IsRegular() {
			continue
		}
		if err != nil {
			return err
		}
		key := dir + name
		if info.IsDir() {
			key += "/"
		}
		if err := f(infoOf(key, info)); err != nil {
			return err
		}
		if recursive && info.IsDir() {
			if err := list(root, key, true, f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Read implements Store.
func (d *directory) Read(_ context.Context, key, tag string, offset int64, p []byte) error {
	root, err := d.open(false)
	if err != nil {
		return err
	}
	defer root.Close()
	f, err := root.OpenFile(nameOf(key), os.O_RDONLY|unix.O_NONBLOCK, 0)
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
func (d *directory) Put(_ context.Context, key string, content io.Reader, size int64, meta Meta) (Info, error) {
	root, err := d.open(true)
	if err != nil {
		return Info{}, err
	}
	defer root.Close()
	return put(root, key, content, size, meta)
}

func put(root *os.Root, key string, content io.Reader, size int64, meta Meta) (Info, error) {
	name := nameOf(key)
	if (Info{Key: key}).Dir() {
		if err := root.MkdirAll(name, 0o755); err != nil {
			return Info{}, err
		}
		return change(root, key, meta)
	}
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		return Info{}, err
	}
	fresh := path.Join(path.Dir(name), temporary+rand.Text())
	f, err := root.OpenFile(fresh, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return Info{}, err
	}
	defer root.Remove(fresh)
	if size > 0 {
		_, err = io.CopyN(f, content, size)
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return Info{}, err
	}
	if err := root.Rename(fresh, name); err != nil {
		return Info{}, err
	}
	return change(root, key, meta)
}

// change sets the metadata of a file.
func change(root *os.Root, key string, meta Meta) (Info, error) {
	name := nameOf(key)
	err := root.Chmod(name, fs.FileMode(meta.Mode)&fs.ModePerm)
	if os.Geteuid() == 0 {
		err = errors.Join(err, root.Lchown(name, int(meta.UID), int(meta.GID)))
	}
	if err = errors.Join(err, root.Chtimes(name, meta.Time, meta.Time)); err != nil {
		return Info{}, err
	}
	info, err := root.Lstat(name)
	if err != nil {
		return Info{}, err
	}
	return infoOf(key, info), nil
}

// Copy implements Store.
func (d *directory) Copy(_ context.Context, from, to string, meta Meta) (Info, error) {
	root, err := d.open(true)
	if err != nil {
		return Info{}, err
	}
	defer root.Close()
	if from == to {
		return change(root, to, meta)
	}
	if (Info{Key: from}).Dir() {
		return put(root, to, nil, 0, meta)
	}
	f, err := root.OpenFile(nameOf(from), os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return Info{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return Info{}, err
	}
	return put(root, to, f, info.Size(), meta)
}

// Delete implements Store.
func (d *directory) Delete(_ context.Context, key string) error {
	root, err := d.open(false)
	if err == nil {
		defer root.Close()
		if name := nameOf(key); name != "." {
			err = root.Remove(name)
		} else {
			err = d.removeTop()
		}
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	return err
}

// removeTop removes the directory of the prefix.
func (d *directory) removeTop() error {
	if d.prefix == "" {
		return nil
	}
	top, err := os.OpenRoot(d.top)
	if err != nil {
		return err
	}
	defer top.Close()
	return top.Remove(d.prefix)
}
