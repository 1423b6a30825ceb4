// Package filetree moves and copies directories, also from one disk to another, so that they survive a power cut, and
// compares their paths.
package filetree

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
)

// Below reports whether a path is the directory or inside it.
func Below(dir, path string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// Copy copies a file or a directory, files with their modes, owners and times.
func Copy(from, to string) error {
	return filepath.WalkDir(from, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rest, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rest)
		info, err := e.Info()
		if err != nil {
			return err
		}
		switch {
		case e.IsDir():
			return os.MkdirAll(target, info.Mode().Perm())
		case e.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case e.Type().IsRegular():
			return copyFile(path, target, info)
		}
		return nil // a socket of a process that has ended
	})
}

func copyFile(from, to string, info fs.FileInfo) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, info.Mode().Perm())
	if err != nil {
		return err
	}
	// A file system that can share blocks copies at once.
	if unix.IoctlFileClone(int(out.Fd()), int(in.Fd())) != nil {
		_, err = io.Copy(out, in)
	}
	if st := new(unix.Stat_t); err == nil && unix.Fstat(int(in.Fd()), st) == nil {
		err = out.Chown(int(st.Uid), int(st.Gid))
	}
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return err
	}
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// Sync makes the names below a directory survive a power cut.
func Sync(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return atomicfile.SyncDir(path)
	})
}

// Replace puts source in a place, of which nothing is kept. The place may be on a disk of its own, or be one: then the
// source is copied, again after a crash, until it is put aside at once.
func Replace(place, source string) error {
	if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
		return err
	}
	err := os.RemoveAll(place)
	mounted := errors.Is(err, unix.EBUSY) // a mount point stays, empty
	if err == nil {
		err = os.Rename(source, place)
	}
	if mounted || errors.Is(err, unix.EXDEV) {
		placed := source + ".placed"
		for _, step := range []func() error{
			func() error { return Copy(source, place) },
			func() error { return Sync(place) },
			func() error { return atomicfile.SyncDir(filepath.Dir(place)) },
			func() error { return os.RemoveAll(placed) }, // of a run that crashed
			func() error { return os.Rename(source, placed) },
			func() error { return atomicfile.SyncDir(filepath.Dir(placed)) },
			func() error { return os.RemoveAll(placed) },
		} {
			if err = step(); err != nil {
				return err
			}
		}
		return nil
	}
	if err != nil {
		return err
	}
	return atomicfile.SyncDir(filepath.Dir(place))
}
