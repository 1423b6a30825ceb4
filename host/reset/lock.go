package reset

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/host"
)

// lockAll takes the locks that a server holds while it runs on any of these directories: the file "lock" in the data
// directory, and the run directory and the kubelet's themselves (base/datadir). A missing directory has no lock to
// take.
func lockAll(dataDir string, others ...string) (locks []*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(locks)
			locks = nil
		}
	}()
	for _, path := range append([]string{filepath.Join(dataDir, "lock")}, others...) {
		f, err := os.Open(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return locks, fmt.Errorf("lock %s: %w", path, err)
		}
		locks = append(locks, f)
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			who := "a server"
			if pid := (host.Tree{}).LockHolder(f); pid != "" {
				who = "a server (pid " + pid + ")"
			}
			return locks, fmt.Errorf("%s is running on %s: stop it first", who, strings.TrimSuffix(path, "/lock"))
		}
		if err != nil {
			return locks, fmt.Errorf("lock %s: %w", path, err)
		}
	}
	return locks, nil
}

func closeAll(files []*os.File) error {
	var errs []error
	for _, f := range files {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// networkInUse reports whether a server runs in this network namespace, on whatever directories. It is called while the
// locks of lockAll are held, so that server is not the one that reset removes.
func networkInUse() bool {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return true // unknown, so assume it
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}
