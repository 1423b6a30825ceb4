// Package hosttest replaces this machine's files with a directory.
package hosttest

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/host"
)

// Host is a directory with the files of a machine.
type Host struct {
	host.Tree
	t *testing.T
}

// New returns a machine without files.
func New(t *testing.T) Host { return Host{host.Tree{Root: t.TempDir()}, t} }

// Write creates a file and its parent directories.
func (h Host) Write(path, text string) {
	h.t.Helper()
	path = h.Path(path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		h.t.Fatal(err)
	}
}

// Link creates a symbolic link and its parent directories.
func (h Host) Link(path, target string) {
	h.t.Helper()
	path = h.Path(path)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(target, path)); err != nil {
		h.t.Fatal(err)
	}
}

// Process creates the /proc files of a process.
func (h Host) Process(pid, parent int, name, exe, cgroup string, args ...string) {
	dir := "/proc/" + strconv.Itoa(pid)
	h.Write(dir+"/stat", strconv.Itoa(pid)+" ("+name+") S "+strconv.Itoa(parent)+strings.Repeat(" 1", 18))
	h.Write(dir+"/cmdline", strings.Join(args, "\x00")+"\x00")
	h.Write(dir+"/cgroup", "5:memory:"+cgroup+"\n")
	h.Link(dir+"/exe", exe)
}
