package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// OwnerFile is where the run directory says whose it is, for reset: the path of the data directory.
const OwnerFile = "data-dir"

// Hold makes further directories of a server and takes them for this process too, so that no other server uses them and reset does not
// remove them meanwhile. The lock is on the directory itself: others find no file of ours in it. It notes in the first one, the run
// directory, which data directory belongs to it. Close gives them free.
func (d *Dir) Hold(runDir string, others ...string) error {
	for i, dir := range append([]string{runDir}, others...) {
		mode := os.FileMode(0o755)
		if i == 0 { // the run directory has the sockets
			mode = 0o700
		}
		f, err := holdDir(dir, mode)
		if err != nil {
			return err
		}
		d.held = append(d.held, f)
	}
	if err := os.WriteFile(filepath.Join(runDir, OwnerFile), []byte(d.path+"\n"), 0o600); err != nil {
		return fmt.Errorf("directory %s cannot be written (%w): mend that or use another", runDir, err)
	}
	return d.holdNetwork()
}

func holdDir(dir string, mode os.FileMode) (*os.File, error) {
	if err := os.MkdirAll(dir, mode); err != nil {
		return nil, fmt.Errorf("directory %s cannot be made (%w): mend that or use another", dir, err)
	}
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("directory %s cannot be used (%w): mend that or use another", dir, err)
	}
	// As in takeLock: what a killed process was just starting keeps the lock for a moment.
	for deadline := time.Now().Add(settle); ; time.Sleep(settle / 100) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, errors.Join(fmt.Errorf("directory %s: lock: %w", dir, err), f.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(fmt.Errorf("directory %s is in use by another server or by reset: stop it, or use another directory", dir), f.Close())
		}
	}
}

// holdNetwork takes a shared lock on the network namespace. Packet filter tables and the bridge have fixed names: a reset of
// another data directory learns by it that they are not its own alone. It asks for a moment only, so that waiting is short.
func (d *Dir) holdNetwork() error {
	f, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	d.held = append(d.held, f)
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH); err != nil {
		return fmt.Errorf("network namespace: lock: %w", err)
	}
	return nil
}
