package reset

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/base/filetree"
)

// mounts returns the mount points below our directories, the latest first: the order in which to unmount them. The
// user's disks are left out, as is a directory that is itself a mount, unless it is mounted on itself: the kubelet does
// that to its directory where the root file system's mounts are private (mount.MakeRShared).
func (r *Reset) mounts() ([]string, error) {
	var out []string
	for _, dir := range r.dirs() {
		points, err := r.mountsBelow(dir)
		if err != nil {
			return nil, err
		}
		for _, p := range points {
			if (p != dir || r.onItself(dir)) && !r.isDisk(p) && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// isDisk reports whether a mount stands for a directory of the data directory, or that of a storage plugin's volumes: a
// user has given it a disk (docs/storage.md). Ours are further below.
func (r *Reset) isDisk(mount string) bool {
	name, below := strings.CutPrefix(mount, r.opts.DataDir+"/")
	return below && (filepath.Dir(name) == volumes || slices.ContainsFunc(slices.Concat(datadir.Made(), datadir.Dropped()),
		func(made string) bool { return filetree.Below(name, made) }))
}

// volumes has a directory for each storage plugin.
const volumes = "plugins/data"

// mountsBelow lists the mount points at and below a path, the latest first, with repetitions where one hides another.
func (r *Reset) mountsBelow(path string) ([]string, error) {
	all, err := r.files.Mounts()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, m := range slices.Backward(all) {
		if filetree.Below(path, m.Mountpoint) {
			out = append(out, m.Mountpoint)
		}
	}
	return out, nil
}

// onItself reports whether the topmost mount at path shows what would be there without it.
func (r *Reset) onItself(path string) bool {
	all, _ := r.files.Mounts() // mountsBelow has reported an error
	byID := map[int]*mountinfo.Info{}
	on := false
	for _, m := range all {
		byID[m.ID] = m
		if m.Mountpoint != path {
			continue
		}
		parent := byID[m.Parent]
		if parent == nil {
			parent = &mountinfo.Info{}
		}
		inside := strings.TrimPrefix(m.Root, strings.TrimSuffix(parent.Root, "/"))
		on = m.Major == parent.Major && m.Minor == parent.Minor && filepath.Join(parent.Mountpoint, inside) == m.Mountpoint
	}
	return on
}

// unmountAll unmounts everything below our directories; a busy mount goes when its users have ended.
func (r *Reset) unmountAll() []error {
	const rounds = 16 // mounts on top of each other at one path
	failed := map[string]error{}
	for range rounds {
		mounts, err := r.mounts()
		if err != nil {
			return []error{err}
		}
		progress := false
		for _, m := range mounts {
			err := unix.Unmount(m, unix.UMOUNT_NOFOLLOW)
			if errors.Is(err, unix.EBUSY) {
				err = unix.Unmount(m, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
			if err != nil {
				failed[m] = fmt.Errorf("unmount %s: %w", m, err)
				continue
			}
			delete(failed, m)
			progress = true
			r.printf("unmounted %s", m)
		}
		if !progress {
			break
		}
	}
	var errs []error
	for _, err := range failed {
		errs = append(errs, err)
	}
	return errs
}
