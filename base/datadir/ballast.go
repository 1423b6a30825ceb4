package datadir

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

const (
	// ballastFile is reserved space for a full disk. Without free space etcd cannot start, and without the API and the
	// kubelet, deleting objects frees none.
	ballastFile = "ballast"
	// ballastSize is room for a new log file of etcd, which takes 64 MB at once, and as much for everything else.
	ballastSize = 128 << 20
	// ballastRoom is the free space, in bytes, from which the file is created.
	ballastRoom = 3 * ballastSize
)

// KeepBallast creates the file if it is missing and there is room for it. It is called now and then: a start that finds
// the disk full removes the file.
func (d *Dir) KeepBallast() error { return keepBallast(d.path, ballastSize, ballastRoom) }

func keepBallast(dir string, size int64, room uint64) error {
	path := filepath.Join(dir, ballastFile)
	if info, err := os.Stat(path); err == nil && info.Size() == size {
		return nil
	}
	if free, _, err := space(dir); err != nil || free < room {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("ballast: %w", err)
	}
	defer f.Close()
	err = unix.Fallocate(int(f.Fd()), 0, 0, size)
	if err == nil {
		return nil
	}
	os.Remove(path)
	if errors.Is(err, unix.EOPNOTSUPP) { // not supported by the file system: it does without
		return nil
	}
	return fmt.Errorf("ballast %s: %w", path, err)
}

// dropBallast removes the file when less than min bytes are free. The caller holds the lock.
func dropBallast(dir string, min uint64) {
	if free, _, err := space(dir); err == nil && free < min {
		// If this fails, it fails again, with a message, where the space is needed.
		_ = os.Remove(filepath.Join(dir, ballastFile))
	}
}

// space returns how many bytes are free for us, and whether the file system is writable.
func space(dir string) (free uint64, writable bool, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false, fmt.Errorf("data directory %s: read free space: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), st.Flags&unix.ST_RDONLY == 0, nil
}

// full reports whether an error means that there is no space.
func full(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
