package upgrade

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/filetree"
)

// pathOf returns what is copied of a name: of etcd's directory, which may be a disk and have data of a former
// membership, the member's only.
func pathOf(name string) string {
	if name == datadir.Etcd {
		return datadir.Member
	}
	return name
}

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
		path := filepath.Join(dataDir, pathOf(name))
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := filetree.Copy(path, filepath.Join(to, pathOf(name))); err != nil {
			return nil, fmt.Errorf("copy %s: %w", path, err)
		}
		copied = append(copied, name)
	}
	return copied, filetree.Sync(to)
}

// bytesOf is the space that names of the data directory take.
func bytesOf(dataDir string, names []string) (total uint64, err error) {
	for _, name := range names {
		err := filepath.WalkDir(filepath.Join(dataDir, pathOf(name)), func(_ string, e fs.DirEntry, err error) error {
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
		source, place := filepath.Join(from, pathOf(name)), filepath.Join(dataDir, pathOf(name))
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
		if name == datadir.Etcd {
			if unchanged(place, source) {
				continue
			}
			fresh := filepath.Join(from, name) + ".renewed"
			if err := os.RemoveAll(fresh); err != nil {
				return err
			}
			if err := renew(filepath.Dir(source), fresh); err != nil {
				return fmt.Errorf("put back etcd's former data: %w", err)
			}
			if err := filetree.Sync(fresh); err != nil {
				return err
			}
			if err := filetree.Replace(place, filepath.Join(fresh, filepath.Base(source))); err != nil {
				return err
			}
			if err := os.RemoveAll(source); err != nil {
				return err
			}
			continue
		}
		if err := filetree.Replace(place, source); err != nil {
			return err
		}
	}
	return nil
}
