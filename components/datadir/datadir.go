// Package datadir owns the cluster's data directory as a whole: that it can be used, that one process
// uses it at a time, and which format it has.
//
// What is inside belongs to the components: server/ (tls, db, cred, token, manifests), agent/ (containerd, images),
// data/<hash>/bin (the unpacked payload) and plugins/. Here are only "lock" and "version".
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// minFree is the space, in bytes, without which nothing is started: etcd alone preallocates a log file of 64 MB.
const minFree = 64 << 20

// Dir is a data directory that this process holds.
type Dir struct {
	path string
	lock *os.File
}

// Open creates the directory (mode 0700) if it is missing, takes it for this process, and brings an
// older format up to date. release is the version of kubelith, which is noted for information. A directory that is
// held by another process, cannot be written, has too little space, or was made by a newer
// kubelith is refused; nothing in it is changed then.
func Open(dir, release string) (*Dir, error) {
	return open(dir, release, minFree, steps())
}

func open(dir, release string, minFree uint64, upgrades []step) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unusable(dir, err)
	}
	// The space first: on a full disk the lock file itself could not be made.
	if err := checkSpace(dir, minFree); err != nil {
		return nil, err
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	if err := upgrade(dir, release, upgrades); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Dir{path: dir, lock: lock}, nil
}

// Path returns the directory's path; elem is joined to it.
func (d *Dir) Path(elem ...string) string {
	return filepath.Join(append([]string{d.path}, elem...)...)
}

// Close gives the directory free for another process.
func (d *Dir) Close() error { return d.lock.Close() }

// takeLock takes D/lock, which holds the process id of its owner, and shows by that that the directory can be written.
// The kernel frees the lock when the process ends in any way, so a file left behind means nothing.
func takeLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(dir, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("data directory %s: lock: %w", dir, err)
		}
		holder := "another process"
		pid, _ := os.ReadFile(f.Name())
		if s := strings.TrimSpace(string(pid)); s != "" {
			holder = "process " + s
		}
		return nil, fmt.Errorf("data directory %s is in use by %s: stop it, or use another --data-dir", dir, holder)
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil {
		return nil, errors.Join(unusable(dir, err), f.Close())
	}
	return f, nil
}

func checkSpace(dir string, min uint64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("data directory %s: read free space: %w", dir, err)
	}
	free := st.Bavail * uint64(st.Bsize)
	if st.Flags&unix.ST_RDONLY == 0 && free < min {
		return fmt.Errorf("data directory %s is on a full disk (%d MiB free): free at least %d MiB, or use another --data-dir", dir, free>>20, min>>20)
	}
	return nil
}

// unusable says why the directory cannot be written and what helps.
func unusable(dir string, err error) error {
	what := "use another --data-dir"
	switch {
	case errors.Is(err, unix.EROFS):
		what = "its file system is mounted read-only; remount it or use another --data-dir"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		what = "its disk is full; free at least 64 MiB or use another --data-dir"
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		what = "run kubelith as root"
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, fs.ErrExist):
		what = "a file is in the way; remove it or use another --data-dir"
	}
	return fmt.Errorf("data directory %s cannot be written (%w): %s", dir, err, what)
}
