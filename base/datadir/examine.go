package datadir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Examine returns why Open and Hold would refuse the directories; nil while a node runs on them. It writes nothing.
// kubeletRoot is empty where no kubelet runs.
func Examine(dir, runDir, kubeletRoot string) error {
	if inUse(dir) {
		return nil
	}
	if _, err := os.Stat(dir); err == nil {
		if err := checkNew(dir); err != nil {
			return err
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return unusable(dir, err)
	}
	d := &Dir{path: dir, fresh: !exists(filepath.Join(dir, "version"))}
	dirs := map[string]string{"--data-dir": dir, "--run-dir": runDir}
	if kubeletRoot != "" {
		dirs["--kubelet-root-dir"] = kubeletRoot
	}
	if err := Nested(dirs); err != nil {
		return err
	}
	if err := d.mayTakeRun(runDir); err != nil || kubeletRoot == "" {
		return err
	}
	return d.mayTakeKubelet(runDir, kubeletRoot)
}

// inUse reports whether a process holds the lock of the data directory.
func inUse(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}
