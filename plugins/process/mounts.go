package process

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// detachBelow unmounts what a plugin has left mounted in its directory: a plugin that mounts is killed one day before
// it unmounts, and os.RemoveAll would delete what is in the file system, perhaps a share of the network.
func detachBelow(dir string) error {
	real, err := filepath.EvalSymlinks(dir) // mountinfo has resolved paths
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(real))
	if err != nil {
		return fmt.Errorf("what is mounted in %s: %w", dir, err)
	}
	for _, m := range slices.Backward(mounts) {
		if err := unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return fmt.Errorf("unmount %s, which a plugin has left: %w", m.Mountpoint, err)
		}
	}
	return nil
}
