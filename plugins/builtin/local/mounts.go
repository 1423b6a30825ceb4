package local

import (
	"fmt"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// readMounts returns the mounts of this process's mount namespace, which is the kubelet's.
func readMounts() ([]*mountinfo.Info, error) { return mountinfo.GetMounts(nil) }

// readOnly reports whether a mount is, whatever its file system is.
func readOnly(m *mountinfo.Info) bool {
	return m.Options == "ro" || strings.HasPrefix(m.Options, "ro,")
}

// mountsOf returns the mounts of a volume: those for pods, and the staging path of a file system in a file.
func (s *store) mountsOf(v *volume) ([]*mountinfo.Info, error) {
	all, err := s.mounts()
	if err != nil {
		return nil, err
	}
	is := func(m *mountinfo.Info) bool { return strings.HasSuffix(m.Root, "/volumes/"+v.ID+"/"+dataDir) }
	if v.Mode == block || v.Enforcement == file {
		device, err := findLoop(s.file(v, imageFile))
		if err != nil || device == "" {
			return nil, err
		}
		if is, err = mountOfLoop(v.Mode, device); err != nil {
			return nil, err
		}
	}
	var found []*mountinfo.Info
	for _, m := range all {
		if is(m) {
			found = append(found, m)
		}
	}
	return found, nil
}

// mountOfLoop reports whether a mount is of a loop device.
func mountOfLoop(m mode, device string) (func(*mountinfo.Info) bool, error) {
	if m == block { // the publish path, and where the kubelet has bind-mounted that
		return func(m *mountinfo.Info) bool {
			return (m.FSType == "devtmpfs" || m.FSType == "tmpfs") && "/dev"+m.Root == device
		}, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: device, Err: err}
	}
	return func(m *mountinfo.Info) bool { return unix.Mkdev(uint32(m.Major), uint32(m.Minor)) == st.Rdev }, nil
}

// nothingMountedBelow returns an error if anything is mounted in a directory of the store: a pod may leave such a mount
// in its volume with mountPropagation: Bidirectional. Its contents are not the volume's.
func (s *store) nothingMountedBelow(dir string) error {
	all, err := s.mounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		if strings.HasPrefix(m.Mountpoint, dir+"/") {
			return fmt.Errorf("%w: something is mounted at %s: unmount it", errInUse, m.Mountpoint)
		}
	}
	return nil
}

// mountAt returns the topmost mount at a path; nil: there is none.
func mountAt(all []*mountinfo.Info, target string) *mountinfo.Info {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].Mountpoint == target {
			return all[i]
		}
	}
	return nil
}

// mountFlags are the mount options of a StorageClass that apply to a bind mount.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// flagsOf returns the flags of mount options.
func flagsOf(options []string, readonly bool) (flags uintptr, err error) {
	for _, o := range options {
		f, ok := mountFlags[o]
		if !ok {
			return 0, fmt.Errorf("mount option %q: a local volume takes ro, rw, noexec, nosuid, nodev, noatime, nodiratime and relatime", o)
		}
		flags |= f
	}
	if readonly {
		flags |= unix.MS_RDONLY
	}
	return flags, nil
}

// bind mounts source at target, with its own flags.
func bind(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + source + " at", Path: target, Err: err}
	}
	return rebind(target, flags)
}

// rebind sets the flags of a bind mount, which the mount itself ignores.
func rebind(target string, flags uintptr) error {
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return &os.PathError{Op: "set the options of the mount at", Path: target, Err: err}
	}
	return nil
}

// unbind unmounts target. It is no error if nothing is mounted there.
func unbind(target string) error {
	for {
		all, err := readMounts()
		if err != nil {
			return err
		}
		if mountAt(all, target) == nil {
			return nil
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: target, Err: err}
		}
	}
}
