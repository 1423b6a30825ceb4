package upgrade

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
)

// Database is the name of etcd's data in the data directory.
const Database = "server/db"

// copyData copies names of the data directory, while nothing writes to them. It returns those that exist.
func copyData(dataDir string, names []string) (copied []string, err error) {
	to := copies(dataDir)
	if err := os.RemoveAll(to); err != nil { // of an interrupted run
		return nil, err
	}
	if err := os.MkdirAll(to, 0o700); err != nil {
		return nil, err
	}
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join(dataDir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := copyTree(filepath.Join(dataDir, name), filepath.Join(to, name)); err != nil {
			return nil, fmt.Errorf("copy %s: %w", filepath.Join(dataDir, name), err)
		}
		copied = append(copied, name)
	}
	return copied, syncTree(to)
}

// copyTree copies a file or a directory with modes, owners and times.
func copyTree(from, to string) error {
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

// syncTree makes the names below a directory survive a power cut.
func syncTree(dir string) error {
	return filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.IsDir() {
			return err
		}
		return atomicfile.SyncDir(path)
	})
}

// bytesOf is the space that names of the data directory take.
func bytesOf(dataDir string, names []string) (total uint64, err error) {
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(dataDir, name), func(_ string, e fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			if info, err := e.Info(); err == nil && info.Mode().IsRegular() {
				total += uint64(info.Size())
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
	}
	return total, nil
}

// unchanged reports whether nothing has written to a directory since it was copied: files have the same names, sizes
// and times.
func unchanged(dir, copied string) bool {
	then, now := files(copied), files(dir)
	if len(then) != len(now) {
		return false
	}
	for name, info := range then {
		other, ok := now[name]
		if !ok || other.Size() != info.Size() || !other.ModTime().Equal(info.ModTime()) {
			return false
		}
	}
	return true
}

// files are the regular files below a directory.
func files(dir string) map[string]fs.FileInfo {
	all := map[string]fs.FileInfo{}
	_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return nil
		}
		if info, err := e.Info(); err == nil {
			all[path[len(dir):]] = info
		}
		return nil
	})
	return all
}

// putBack replaces the data by the copies. It can be repeated after a crash: a copy that is gone is in its place
// already. renew prepares etcd's data, unless nothing has changed it.
func putBack(dataDir string, names, copied []string, renew func(from, to string) error) error {
	from := copies(dataDir)
	for _, name := range names {
		source, place := filepath.Join(from, name), filepath.Join(dataDir, name)
		_, err := os.Lstat(source)
		had := false
		for _, c := range copied {
			had = had || c == name
		}
		switch {
		case errors.Is(err, fs.ErrNotExist) && had:
			continue // it is in its place
		case errors.Is(err, fs.ErrNotExist):
			if err := os.RemoveAll(place); err != nil { // the new program has created it
				return err
			}
			continue
		case err != nil:
			return err
		}
		if name == Database {
			if unchanged(place, source) {
				continue
			}
			fresh := source + ".renewed"
			if err := os.RemoveAll(fresh); err != nil {
				return err
			}
			if err := renew(source, fresh); err != nil {
				return fmt.Errorf("put back etcd's former data: %w", err)
			}
			if err := syncTree(fresh); err != nil {
				return err
			}
			if err := replace(place, fresh); err != nil {
				return err
			}
			if err := os.RemoveAll(source); err != nil {
				return err
			}
			continue
		}
		if err := replace(place, source); err != nil {
			return err
		}
	}
	return nil
}

// replace puts source in a place, of which nothing is kept. The place may be on a disk of its own, or be one: then the
// source is copied, again after a crash, until it is put aside at once.
func replace(place, source string) error {
	err := os.RemoveAll(place)
	mounted := errors.Is(err, unix.EBUSY) // a mount point stays, empty
	if err == nil {
		err = os.Rename(source, place)
	}
	if mounted || errors.Is(err, unix.EXDEV) {
		placed := source + ".placed"
		for _, step := range []func() error{
			func() error { return copyTree(source, place) },
			func() error { return syncTree(place) },
			func() error { return atomicfile.SyncDir(filepath.Dir(place)) },
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
