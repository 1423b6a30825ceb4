package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/plugins/examples/fuse/client"
)

// fsType is how mounts appear in a pod.
const fsType = "fuse.kubelith"

// maxRead is the client's.
const maxRead = 128 << 10

// mountFlags are the mount options that the kernel knows.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "exec": 0, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// options of a mount, as a StorageClass, a PersistentVolume or a pod has them.
type options struct {
	client.Options
	flags uintptr
}

func optionsOf(flags []string) (o options, err error) {
	for _, flag := range flags {
		name, value, number := strings.Cut(flag, "=")
		base, into := 10, (*uint32)(nil)
		switch name {
		case "uid":
			into = &o.UID
		case "gid":
			into = &o.GID
		case "umask":
			base, into = 8, &o.Umask
		}
		bits, known := mountFlags[flag]
		switch {
		case into != nil && number:
			n, err := strconv.ParseUint(value, base, 31)
			if err != nil {
				return options{}, fmt.Errorf("mount option %q: %s is not a number", flag, value)
			}
			*into = uint32(n)
		case known:
			o.flags |= bits
		default:
			return options{}, fmt.Errorf("mount option %q: use uid=, gid=, umask=, ro, rw, noexec, nosuid, nodev, noatime, nodiratime or relatime", flag)
		}
	}
	return o, nil
}

// mountFUSE mounts a volume at a path. What is there already stays below it.
func mountFUSE(volume, path string, flags uintptr) (fd int, err error) {
	fd, err = unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("/dev/fuse: %w: load the kernel module fuse", err)
	}
	data := fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other,default_permissions,max_read=%d", fd, maxRead)
	if err := unix.Mount("kubelith:"+volume, path, fsType, flags|unix.MS_NOSUID|unix.MS_NODEV, data); err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "mount the volume at", Path: path, Err: err}
	}
	return fd, nil
}

// bind mounts source at target, with its own flags.
func bind(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + source + " at", Path: target, Err: err}
	}
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV|flags, ""); err != nil {
		return &os.PathError{Op: "set the options of the mount at", Path: target, Err: err}
	}
	return nil
}

// mountsAt returns how many mounts are at a path, one on the other, and whether the topmost is ours.
func mountsAt(path string) (count int, ours bool, err error) {
	_, err = mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		if m.Mountpoint == path {
			count++
			ours = m.FSType == fsType
		}
		return true, false
	})
	return count, ours, err
}

// unmount all that is mounted at a path. Programs that still use it do not keep it there.
func unmount(path string) error { return unmountWith(path, 0) }

// unmountNow unmounts all that is mounted at a path, and ends the connection to the client, whatever process still has
// it.
func unmountNow(path string) error { return unmountWith(path, unix.MNT_FORCE) }

func unmountWith(path string, flags int) error {
	for {
		count, _, err := mountsAt(path)
		if err != nil || count == 0 {
			return err
		}
		if err := unix.Unmount(path, flags|unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: path, Err: err}
		}
	}
}

// resolve resolves symbolic links in the path of a target, which need not exist: mountinfo has resolved paths.
func resolve(target string) (string, error) {
	if !filepath.IsAbs(target) {
		return "", invalid("path %q is not absolute", target)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(filepath.Clean(target)))
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, filepath.Base(target)), nil
}
