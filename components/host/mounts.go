package host

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mounts are the mount points below our directories, the latest first: the order in which they can be undone. A directory
// that is itself a mount is the user's choice of a disk and is left out, unless it is mounted on itself: the kubelet does
// that to its directory where the root file system's mounts are private (mount.MakeRShared).
func (r *Reset) mounts() ([]string, error) {
	var out []string
	for _, dir := range r.dirs() {
		points, err := r.mountsBelow(dir)
		if err != nil {
			return nil, err
		}
		for _, p := range points {
			if (p != dir || r.onItself(dir)) && !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out, nil
}

// mountsBelow lists the mount points at and below a path, the latest first, with repetitions where one hides another.
func (r *Reset) mountsBelow(path string) ([]string, error) {
	text := r.files.text("/proc/self/mountinfo")
	if text == "" {
		return nil, errors.New("cannot read /proc/self/mountinfo: mount /proc")
	}
	var out []string
	for _, line := range strings.Split(text, "\n") {
		// ID PARENT MAJOR:MINOR ROOT MOUNTPOINT ..., see proc_pid_mountinfo(5)
		if fields := strings.Fields(line); len(fields) > 4 {
			if p := unescape(fields[4]); below(path, p) {
				out = append(out, p)
			}
		}
	}
	slices.Reverse(out)
	return out, nil
}

// onItself tells whether the topmost mount at path shows what would be there without it.
func (r *Reset) onItself(path string) bool {
	type mount struct{ device, root, point string }
	byID := map[string]mount{}
	on := false
	for _, line := range strings.Split(r.files.text("/proc/self/mountinfo"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		m := mount{fields[2], unescape(fields[3]), unescape(fields[4])}
		byID[fields[0]] = m
		if m.point == path {
			parent := byID[fields[1]]
			inside := strings.TrimPrefix(m.root, strings.TrimSuffix(parent.root, "/"))
			on = m.device == parent.device && filepath.Join(parent.point, inside) == m.point
		}
	}
	return on
}

// unescape undoes the octal escapes (\040 for a blank) of /proc/self/mountinfo.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if n, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// unmountAll undoes all mounts below our directories, those that are busy when their users have ended.
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
			r.say("unmounted %s", m)
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
