package cgroups

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSettings(t *testing.T) {
	l := Limits{Memory: 64 << 20, MilliCPU: 500, PIDs: 10}
	for mode, want := range map[Mode]string{
		V1: "memory.limit_in_bytes=67108864 memory.memsw.limit_in_bytes=67108864 cpu.cfs_period_us=100000 cpu.cfs_quota_us=50000 pids.max=10",
		V2: "memory.max=67108864 memory.swap.max=0 memory.oom.group=1 cpu.max=50000 100000 pids.max=10",
	} {
		var got []string
		for _, s := range settings(mode, l) {
			got = append(got, s.file+"="+s.value)
			if !strings.HasPrefix(s.file, s.controller+".") {
				t.Errorf("%s is not a file of %s", s.file, s.controller)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %v, want %s", mode, got, want)
		}
		if none := settings(mode, Limits{Memory: -1}); len(none) > 0 {
			t.Errorf("%s: without limits %v", mode, none)
		}
	}
}

// usable returns a parent of groups on this host, which it removes again.
func usable(t *testing.T, parent func(name string) (*Parent, error)) *Parent {
	t.Helper()
	p, err := parent(fmt.Sprintf("kubelith-test-%d-%s", os.Getpid(), t.Name()))
	if err != nil {
		t.Skipf("this host's cgroups cannot be used: %v", err)
	}
	t.Cleanup(func() {
		if err := p.Remove(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func group(t *testing.T, p *Parent, l Limits) *Group {
	t.Helper()
	g, err := p.New("a", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

// in reports whether a process is in all directories of a group.
func in(t *testing.T, pid int, g *Group) bool {
	t.Helper()
	for _, dir := range g.Dirs() {
		pids, err := words(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(pids, []string{strconv.Itoa(pid)}) {
			return false
		}
	}
	return true
}

func TestBornInV1(t *testing.T) {
	if m := DetectMode(); m != V1 && m != Hybrid {
		t.Skipf("this host's cgroups are %s", m)
	}
	p := usable(t, NewParent)
	if _, err := p.New("a", Limits{Memory: 1 << 30}); err != nil { // left by a server that was killed
		t.Fatal(err)
	}
	g := group(t, p, Limits{Memory: 64 << 20, MilliCPU: 500, PIDs: 10})
	for controller, file := range map[string]string{"memory": "memory.limit_in_bytes 67108864", "cpu": "cpu.cfs_quota_us 50000", "pids": "pids.max 10"} {
		name, want, _ := strings.Cut(file, " ")
		if got, err := words(filepath.Join(g.dir(controller), name)); err != nil || len(got) != 1 || got[0] != want {
			t.Errorf("%s is %v (%v), want %s", name, got, err, want)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	leave, err := g.Enter()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command("/bin/sleep", "1000")
	startErr := c.Start()
	if err := leave(); err != nil {
		t.Error(err)
	}
	if startErr != nil {
		t.Fatal(startErr)
	}
	if !in(t, c.Process.Pid, g) {
		t.Error("the process is not in the group")
	}
	if after, err := os.ReadFile("/proc/thread-self/cgroup"); err != nil || string(after) != string(before) {
		t.Errorf("the thread is in\n%s, it was in\n%s (%v)", after, before, err)
	}
	killed(t, g, c)
}

// The empty v2 hierarchy of a hybrid host works here too.
func TestBornInV2(t *testing.T) {
	mount := mountpoint
	if DetectMode() == Hybrid {
		mount = filepath.Join(mountpoint, "unified")
	} else if m := DetectMode(); m != V2 {
		t.Skipf("this host's cgroups are %s", m)
	}
	p := usable(t, func(name string) (*Parent, error) { return newV2(mount, name) })
	g := group(t, p, Limits{Memory: 64 << 20, PIDs: 10})
	has, err := words(filepath.Join(p.Dirs()[0], "cgroup.controllers"))
	if err != nil {
		t.Fatal(err)
	}
	for _, controller := range has {
		if want, known := map[string]string{"memory": "67108864", "pids": "10"}[controller]; known {
			if got, err := words(filepath.Join(g.Dir(), controller+".max")); err != nil || got[0] != want {
				t.Errorf("%s.max is %v (%v), want %s", controller, got, err, want)
			}
		}
	}
	dir, err := g.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	c := exec.Command("/bin/sleep", "1000")
	c.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(dir.Fd())}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	if !in(t, c.Process.Pid, g) {
		t.Error("the process is not in the group")
	}
	killed(t, g, c)
}

func killed(t *testing.T, g *Group, c *exec.Cmd) {
	t.Helper()
	ended := make(chan error)
	go func() { ended <- c.Wait() }()
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	<-ended
	if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGKILL {
		t.Errorf("the process ended with %v", c.ProcessState)
	}
	if n, err := Kill(append(g.Dirs(), "/does/not/exist")); n != 0 || err != nil {
		t.Errorf("Kill of an empty group: %d, %v", n, err)
	}
}
