package local

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mount is a line of mountinfo.
type mount struct {
	root   string // what of the file system is mounted
	target string
	ro     bool
	fstype string
	device uint64 // of the file system
}

// readMounts of this process's mount namespace, which is the kubelet's.
func readMounts() ([]mount, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return parseMounts(f)
}

// parseMounts reads lines as proc(5) describes them.
func parseMounts(r io.Reader) ([]mount, error) {
	lines, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil, err
	}
	var all []mount
	for _, m := range lines {
		all = append(all, mount{
			root: m.Root, target: m.Mountpoint, fstype: m.FSType, device: unix.Mkdev(uint32(m.Major), uint32(m.Minor)),
			ro: m.Options == "ro" || strings.HasPrefix(m.Options, "ro,"),
		})
	}
	return all, nil
}

// mountsOf a volume: where pods have it, and where a file system in a file is staged.
func (s *store) mountsOf(v *volume) ([]mount, error) {
	all, err := s.mounts()
	if err != nil {
		return nil, err
	}
	is := func(m mount) bool { return strings.HasSuffix(m.root, "/volumes/"+v.ID+"/"+dataDir) }
	if v.Mode == block || v.Enforcement == file {
		device, err := findLoop(s.file(v, imageFile))
		if err != nil || device == "" {
			return nil, err
		}
		if is, err = mountOfLoop(v.Mode, device); err != nil {
			return nil, err
		}
	}
	var found []mount
	for _, m := range all {
		if is(m) {
			found = append(found, m)
		}
	}
	return found, nil
}

// mountOfLoop tells which mounts are of a loop device.
func mountOfLoop(m mode, device string) (func(mount) bool, error) {
	if m == block { // where the kubelet wants it, and where the kubelet has mounted that once more
		return func(m mount) bool { return (m.fstype == "devtmpfs" || m.fstype == "tmpfs") && "/dev"+m.root == device }, nil
	}
	var st unix.Stat_t
	if err := unix.Stat(device, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: device, Err: err}
	}
	return func(m mount) bool { return m.device == st.Rdev }, nil
}

// nothingMountedBelow refuses a directory of the store that has a mount in it, such as a pod leaves that mounts something in its
// volume with mountPropagation: Bidirectional. What is mounted there is not the volume's.
func (s *store) nothingMountedBelow(dir string) error {
	all, err := s.mounts()
	if err != nil {
		return err
	}
	for _, m := range all {
		if strings.HasPrefix(m.target, dir+"/") {
			return fmt.Errorf("%w: something is mounted at %s: unmount it", errInUse, m.target)
		}
	}
	return nil
}

// mountAt is what is mounted at a path, on top.
func mountAt(all []mount, target string) (mount, bool) {
	for i := len(all) - 1; i >= 0; i-- {
		if all[i].target == target {
			return all[i], true
		}
	}
	return mount{}, false
}

// mountFlags are the options of a StorageClass that make sense for what is part of another file system.
var mountFlags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID, "nodev": unix.MS_NODEV,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME,
}

// flagsOf mount options.
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

// bind mounts source at target, with flags of its own.
func bind(source, target string, flags uintptr) error {
	if err := unix.Mount(source, target, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "mount " + source + " at", Path: target, Err: err}
	}
	return rebind(target, flags)
}

// rebind sets the flags of a bind mount, which mounting it does not.
func rebind(target string, flags uintptr) error {
	if flags == 0 {
		return nil
	}
	if err := unix.Mount("", target, "", unix.MS_BIND|unix.MS_REMOUNT|flags, ""); err != nil {
		return &os.PathError{Op: "set the options of the mount at", Path: target, Err: err}
	}
	return nil
}

// unbind undoes bind; what is not mounted is fine.
func unbind(target string) error {
	for {
		all, err := readMounts()
		if err != nil {
			return err
		}
		if _, mounted := mountAt(all, target); !mounted {
			return nil
		}
		if err := unix.Unmount(target, unix.UMOUNT_NOFOLLOW); err != nil {
			return &os.PathError{Op: "unmount", Path: target, Err: err}
		}
	}
}
