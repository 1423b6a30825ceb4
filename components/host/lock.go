package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockAll takes the locks that a server holds while it runs on any of these directories: the file "lock" in the data directory, and
// the run directory and the kubelet's themselves (components/datadir). There is none to take where a directory does not exist.
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
			if pid := lockHolder(tree{}, f); pid != "" {
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

// networkInUse tells whether a server runs in this network namespace, on whatever directories. It is asked while the locks of lockAll
// are held, so it is another one than that which reset removes.
func networkInUse() bool {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return true // nothing is known then
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// runningServer is the process that holds the lock of the data directory; empty when there is none.
func runningServer(files tree, dir string) string {
	f, err := os.Open(files.path(filepath.Join(dir, "lock")))
	if err != nil {
		return ""
	}
	defer f.Close()
	return lockHolder(files, f)
}

// lockHolder finds the process in /proc/locks, whose lines are
// "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF": pid, device and inode.
func lockHolder(files tree, f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for _, line := range strings.Split(files.text("/proc/locks"), "\n") {
		if fields := strings.Fields(line); len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == inode {
			return fields[4]
		}
	}
	return ""
}
