package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// alive reports whether the process exists.
func alive(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestSweep(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "p"), 0o700); err != nil {
		t.Fatal(err)
	}
	start := func() *exec.Cmd {
		c := exec.Command("/bin/sleep", "1000")
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		return c
	}
	left, other := start(), start()
	r := newRecord(filepath.Join(dir, "p"), "left-1")
	r.started(left.Process.Pid)
	around := filepath.Join(dir, cgroupPrefix+"0123") // no cgroup, so that the test needs no root
	r.Cgroups = []string{filepath.Join(around, "left-1")}
	if err := errors.Join(os.MkdirAll(r.Cgroups[0], 0o700), r.write()); err != nil {
		t.Fatal(err)
	}
	reused := newRecord(filepath.Join(dir, "p"), "reused-1")
	reused.PID, reused.Start = other.Process.Pid, "1"
	if err := reused.write(); err != nil {
		t.Fatal(err)
	}
	n, err := Sweep(dir)
	if n != 1 || err != nil {
		t.Errorf("Sweep = %d, %v, want 1", n, err)
	}
	if err := left.Wait(); err == nil {
		t.Error("the process that was left ended by itself")
	}
	if !alive(other.Process.Pid) {
		t.Error("a process that has the pid now was killed")
	}
	for _, path := range []string{filepath.Join(dir, "p"), around} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

// What a killed plugin has left mounted in its directory is unmounted, not emptied.
func TestSweepDetaches(t *testing.T) {
	dir, share := t.TempDir(), t.TempDir()
	kept, mounted := filepath.Join(share, "kept"), filepath.Join(dir, "p", "plugin-dir1", "share")
	if err := errors.Join(os.WriteFile(kept, nil, 0o600), os.MkdirAll(mounted, 0o700)); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(share, mounted, "", syscall.MS_BIND, ""); err != nil {
		t.Skip("nothing can be mounted here: ", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(mounted, syscall.MNT_DETACH) }) // before TempDir's own cleanup
	if _, err := Sweep(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what was mounted is gone: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "p")); err == nil {
		t.Error("the directory is left")
	}
}

// Servers in their own mount namespaces have directories of the same path.
func TestCgroupName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	var names []string
	for range 2 {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		names = append(names, cgroupName(dir))
		if err := os.Rename(dir, fmt.Sprint(dir, len(names))); err != nil {
			t.Fatal(err)
		}
	}
	if names[0] == names[1] {
		t.Errorf("two directories have the group %s", names[0])
	}
}
