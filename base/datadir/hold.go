package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// runDirMode lets other users pass through the run directory without listing it: the root user of a pod with hostUsers:
// false, who is the user nobody here, reaches its bundle by path. Sockets are in their own directories or open to root
// only.
const runDirMode = 0o711

// Hold creates the other directories of a node and takes them for this process too, so that no other server uses them
// and reset does not remove them meanwhile. The lock is on the directory itself. Each gets a mark that names its owner;
// Hold refuses a directory with another owner. kubeletRoot is empty where no kubelet runs: its directory is left alone
// then. Close releases them.
func (d *Dir) Hold(runDir, kubeletRoot string) error {
	if err := Nested(map[string]string{"--data-dir": d.path, "--run-dir": runDir}); err != nil {
		return err
	}
	f, err := holdDir(runDir, runDirMode)
	if err != nil {
		return err
	}
	d.held = append(d.held, f)
	run := f
	if err := d.mayTakeRun(runDir); err != nil {
		return err
	}
	marks := []string{filepath.Join(runDir, RunMark)}
	if kubeletRoot != "" {
		if err := Nested(map[string]string{"--data-dir": d.path, "--run-dir": runDir, "--kubelet-root-dir": kubeletRoot}); err != nil {
			return err
		}
		if f, err = holdDir(kubeletRoot, 0o750); err != nil {
			return err
		}
		d.held = append(d.held, f)
		if err := d.mayTakeKubelet(runDir, kubeletRoot); err != nil {
			return err
		}
		marks = append(marks, filepath.Join(kubeletRoot, KubeletMark))
	}
	if err := d.mark(marks); err != nil {
		return err
	}
	// Whatever the umask is, and also for a directory of an earlier version.
	if err := run.Chmod(runDirMode); err != nil {
		return fmt.Errorf("cannot set the mode of directory %s to %o (%w): use another --run-dir", runDir, runDirMode, err)
	}
	return d.holdNetwork()
}

func holdDir(dir string, mode os.FileMode) (*os.File, error) {
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, fmt.Errorf("cannot create directory %s (%w): correct that or use another", dir, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("cannot use directory %s (%w): correct that or use another", dir, err)
	}
	switch err := flock(f, unix.LOCK_EX); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil, errors.Join(fmt.Errorf("directory %s is in use by another server or by reset: stop it, or use another directory", dir), f.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("directory %s: lock: %w", dir, err), f.Close())
	}
	if err := private(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// flock takes a lock, or returns unix.EWOULDBLOCK if another process has it for longer than settle. As in takeLock: a
// program that a killed process was just starting keeps it for a moment.
func flock(f *os.File, how int) error {
	for deadline := time.Now().Add(settle); ; time.Sleep(settle / 100) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || time.Now().After(deadline) {
			return err
		}
	}
}

// holdNetwork takes a shared lock on the network namespace. Packet filter tables and the bridge have fixed names: from
// this lock, a reset of another data directory learns that it shares them. A reset takes the lock only for a moment.
// Any user of the machine can take it for longer: a start goes on without it then.
func (d *Dir) holdNetwork() error {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	d.held = append(d.held, f)
	if err := flock(f, unix.LOCK_SH); err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
		return fmt.Errorf("network namespace: lock: %w", err)
	}
	return nil
}
