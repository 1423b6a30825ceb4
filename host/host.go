// Package host is the machine that Kubelith runs on, as seen by host/preflight, which reports whether it can run here,
// and by host/reset, which removes what a server has left here. Neither needs a running server, and neither touches
// what is not Kubelith's.
package host

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// Tree reads the host's files; tests replace / with a directory.
type Tree struct{ Root string }

// Cgroups is where control groups are mounted.
const Cgroups = "/sys/fs/cgroup"

// Path returns where a file of the host is for this process.
func (t Tree) Path(p string) string { return filepath.Join(t.Root+"/", p) }

// Exists reports whether there is a file, of any kind; a link counts even when its target is missing.
func (t Tree) Exists(p string) bool {
	_, err := os.Lstat(t.Path(p))
	return err == nil
}

// Text returns a file's content without surrounding white space; empty when it cannot be read.
func (t Tree) Text(p string) string {
	b, err := os.ReadFile(t.Path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// Mounts returns the mounts of this process's mount namespace, as the kernel lists them.
func (t Tree) Mounts() ([]*mountinfo.Info, error) {
	text := t.Text("/proc/self/mountinfo")
	if text == "" {
		return nil, errors.New("cannot read /proc/self/mountinfo: mount /proc")
	}
	return mountinfo.GetMountsFromReader(strings.NewReader(text), nil)
}

// Names returns a directory's entries; none when it cannot be read.
func (t Tree) Names(p string) []string {
	entries, err := os.ReadDir(t.Path(p))
	if err != nil {
		return nil
	}
	out := make([]string, 0, len(entries))
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Glob returns the paths that match a pattern, in our form.
func (t Tree) Glob(pattern string) []string {
	found, _ := filepath.Glob(t.Path(pattern)) // our patterns are well formed
	for i, path := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(path, t.Root), "/")
	}
	return found
}

// IsLink reports whether the path is a symbolic link.
func (t Tree) IsLink(p string) bool {
	info, err := os.Lstat(t.Path(p))
	return err == nil && info.Mode()&os.ModeSymlink != 0
}

// Directories returns a directory and all directories below it; none when it does not exist.
func (t Tree) Directories(p string) []string {
	var out []string
	_ = filepath.WalkDir(t.Path(p), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() { // others disappeared meanwhile
			out = append(out, "/"+strings.TrimPrefix(strings.TrimPrefix(path, t.Root), "/"))
		}
		return nil
	})
	return out
}

// Empty removes the content of a directory.
func (t Tree) Empty(p string) error {
	var errs []error
	for _, name := range t.Names(p) {
		errs = append(errs, os.RemoveAll(filepath.Join(t.Path(p), name)))
	}
	return errors.Join(errs...)
}

// RunningServer returns the process that holds the lock of the data directory; empty when there is none.
func (t Tree) RunningServer(dir string) string {
	f, err := os.Open(t.Path(filepath.Join(dir, "lock")))
	if err != nil {
		return ""
	}
	defer f.Close()
	if pid := t.LockHolder(f); pid != "" {
		return pid
	}
	// On btrfs /proc/locks names another device than stat. The holder has written its process ID.
	if errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK) {
		text, _ := io.ReadAll(f)
		return strings.TrimSpace(string(text))
	}
	return ""
}

// LockHolder finds the process in /proc/locks, whose lines are "1: FLOCK  ADVISORY  WRITE 1234 fd:00:5678 0 EOF": pid,
// device and inode.
func (t Tree) LockHolder(f *os.File) string {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return ""
	}
	inode := fmt.Sprintf("%02x:%02x:%d", unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino)
	for _, line := range strings.Split(t.Text("/proc/locks"), "\n") {
		if fields := strings.Fields(line); len(fields) >= 6 && fields[1] == "FLOCK" && fields[5] == inode {
			return fields[4]
		}
	}
	return ""
}

// Run runs a program and returns its output. The error is the first line of that.
func Run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		if line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n"); line != "" {
			return "", errors.New(line)
		}
		return "", err
	}
	return string(out), nil
}
