package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lockDataDir takes the lock that a server holds while it runs. There is none to take (nil) without a data directory.
func lockDataDir(dir string) (*os.File, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // no server ever ran here
	}
	if err != nil {
		return nil, fmt.Errorf("lock the data directory: %w", err)
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return f, nil
	}
	defer f.Close()
	if !errors.Is(err, unix.EWOULDBLOCK) {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	who := "a server"
	if pid := lockHolder(tree{}, f); pid != "" {
		who = "a server (pid " + pid + ")"
	}
	return nil, fmt.Errorf("%s is running on %s: stop it first", who, dir)
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
