// Package lockfile keeps processes of tests from building the same file at the same time.
package lockfile

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock creates the file, with its directory, and waits for its lock. The lock ends with unlock, or with the process.
func Lock(path string) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		f.Close()
		return nil, err
	}
	return func() { f.Close() }, nil
}
