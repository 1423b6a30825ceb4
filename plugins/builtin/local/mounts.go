package local

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mount is a line of mountinfo.
type mount struct {
	root   string // what of the file system is mounted
	target string
	ro     bool
	fstype string
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

// parseMounts reads lines as proc(5) describes them: id, parent, device, root, target, options, fields up to "-", type, ...
func parseMounts(r io.Reader) ([]mount, error) {
	var all []mount
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20) // an overlay's line names all its layers
	for lines.Scan() {
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 6 || len(rest) < 1 {
			return nil, fmt.Errorf("mountinfo: line %q", lines.Text())
		}
		all = append(all, mount{
			root: unescape(fields[3]), target: unescape(fields[4]), fstype: rest[0],
			ro: fields[5] == "ro" || strings.HasPrefix(fields[5], "ro,"),
		})
	}
	return all, lines.Err()
}

// unescape blanks and the like, which mountinfo writes as \040.
func unescape(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountsOf a volume: where pods have it.
func (s *store) mountsOf(v *volume) ([]mount, error) {
	all, err := readMounts()
	if err != nil {
		return nil, err
	}
	is := func(m mount) bool { return strings.HasSuffix(m.root, "/volumes/"+v.ID+"/"+dataDir) }
	if v.Mode == block {
		device, err := findLoop(s.file(v, imageFile))
		if err != nil || device == "" {
			return nil, err
		}
		// Where the kubelet wants it, and where the kubelet has mounted that once more.
		is = func(m mount) bool { return (m.fstype == "devtmpfs" || m.fstype == "tmpfs") && "/dev"+m.root == device }
	}
	var found []mount
	for _, m := range all {
		if is(m) {
			found = append(found, m)
		}
	}
	return found, nil
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
