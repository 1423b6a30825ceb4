// Package datadir owns the cluster's data directory as a whole: that it is usable, that one process uses it at a time,
// and which format it has.
//
// Its content belongs to the components: server/ (tls, db, cred), agent/ (containerd, cni, images, static-pods) and
// data/<hash>/bin (the unpacked payload). The package itself has only "lock", "version", "id" and "cluster.json". It
// also holds and marks the node's other directories (Hold); their content belongs to the components too.
package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// minFree is the space, in bytes, without which no new directory is created and an old one loses its ballast: etcd
// alone preallocates a log file of 64 MB.
const minFree = 64 << 20

// settle is how long the lock of an ended process may remain: a program that it was just starting has the file open
// too, from fork until exec.
const settle = 2 * time.Second

// Dir is a data directory that this process holds.
type Dir struct {
	path string
	lock *os.File
	held []*os.File // see Hold
	// fresh means that no server or agent has ever run on the directory.
	fresh bool
	// former is the release that used it last, if that is another.
	former  string
	release string      // this one
	adopted atomic.Bool // see Adopt
	format  int         // of the data
}

// Former returns the release that has used the directory last, if that is not this one, else "".
func (d *Dir) Former() string { return d.former }

// Files are the files that Open, Hold and KeepSettings create in the data directory.
func Files(dir string) []string {
	files := []string{"lock", "version", idFile, SettingsFile, ballastFile}
	for i, name := range files {
		files[i] = filepath.Join(dir, name)
	}
	return files
}

// Open creates the directory (mode 0700) if it is missing, takes it for this process, and upgrades an older format.
// release is the version of kubelith: a new directory records it, another one with Adopt. Open refuses a directory, and
// changes nothing in it, when another process holds it, when it cannot be written, when it is new and has too little
// space, or when a newer kubelith wrote it.
func Open(dir, release string) (*Dir, error) {
	return open(dir, release, minFree, steps())
}

func open(dir, release string, minFree uint64, upgrades []step) (*Dir, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unusable(dir, err)
	}
	if err := checkNew(dir); err != nil {
		return nil, err
	}
	if err := keepPrivate(dir); err != nil {
		return nil, err
	}
	// The space first: on a full disk the lock file itself could not be created. Only a new directory is refused: with
	// a cluster in it, starting is how space gets freed.
	if _, err := os.Lstat(filepath.Join(dir, "version")); errors.Is(err, fs.ErrNotExist) {
		if err := checkSpace(dir, minFree); err != nil {
			return nil, err
		}
	}
	lock, err := takeLock(dir)
	if err != nil {
		return nil, err
	}
	fresh := !exists(filepath.Join(dir, "version"))
	former, err := upgrade(dir, release, upgrades)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return &Dir{path: dir, lock: lock, fresh: fresh, former: former, release: release, format: len(upgrades) + 1}, nil
}

// Close releases the directory, and those that Hold took, for another process.
func (d *Dir) Close() error {
	var errs []error
	for _, f := range append(d.held, d.lock) {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// takeLock takes D/lock, which holds the process id of its owner; this also proves that the directory can be written.
// The kernel frees the lock however the process ends, so a leftover file means nothing.
func takeLock(dir string) (*os.File, error) {
	for {
		f, err := tryLock(dir)
		if err != nil {
			return nil, err
		}
		// A refused start removes its lock file: the file that we waited for may be gone from the directory.
		ours, err1 := f.Stat()
		now, err2 := os.Stat(f.Name())
		if err1 == nil && err2 == nil && os.SameFile(ours, now) {
			return f, nil
		}
		f.Close()
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, unusable(dir, err)
		}
	}
}

func tryLock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, unusable(dir, err)
	}
	for deadline := time.Now().Add(settle); ; time.Sleep(settle / 100) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, errors.Join(fmt.Errorf("data directory %s: lock: %w", dir, err), f.Close())
		}
		holder, text := "another process", ""
		if data, err := os.ReadFile(f.Name()); err == nil {
			text = strings.TrimSpace(string(data))
		}
		if text != "" {
			holder = "process " + text
		}
		if pid, err := strconv.Atoi(text); err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH) && time.Now().Before(deadline) {
			continue
		}
		return nil, errors.Join(fmt.Errorf("data directory %s is in use by %s: stop it, or use another --data-dir", dir, holder), f.Close())
	}
	dropBallast(dir, minFree)
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(fmt.Appendf(nil, "%d\n", os.Getpid()), 0)
	}
	if err != nil && !full(err) { // the process id is for users
		return nil, errors.Join(unusable(dir, err), f.Close())
	}
	return f, nil
}

func checkSpace(dir string, min uint64) error {
	free, writable, err := space(dir)
	if err != nil {
		return err
	}
	if writable && free < min {
		return fmt.Errorf("data directory %s is on a full disk (%d MiB free): free at least %d MiB, or use another --data-dir", dir, free>>20, min>>20)
	}
	return nil
}

// unusable returns why the directory cannot be written and what helps.
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
