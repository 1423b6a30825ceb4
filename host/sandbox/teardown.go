package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/plugins/process"
)

// runDir is a node's default run directory, which is in its sandbox.
const runDir = "/run/kubelith"

// ID is enough to find everything that belongs to a sandbox.
type ID struct {
	Index int
	Base  string // its directory on the host's disk
}

// Name is that of its cgroup, in each hierarchy.
func (id ID) Name() string { return fmt.Sprintf("kubelith-test-%d", id.Index) }

// Veth is the host's end of its veth pair.
func (id ID) Veth() string { return fmt.Sprintf("klt%d", id.Index) }

// Sweep removes the sandboxes whose holder is dead.
func Sweep() {
	entries, err := os.ReadDir(StateDir)
	if err != nil {
		return
	}
	for _, e := range entries {
		index, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		state, leftover, err := lockState(index)
		if err != nil {
			continue // alive
		}
		if leftover != "" {
			if err := (ID{Index: index, Base: leftover}).teardown(false); err == nil {
				state.Truncate(0)
			} else {
				fmt.Fprintf(os.Stderr, "sandbox: remove what an earlier run left of sandbox %d: %v\n", index, err)
			}
		}
		state.Close()
	}
}

// teardown ends the sandbox's processes and removes its cgroups, interface, mounts and directory. inside means that the
// caller is the holder, in the sandbox's own namespaces.
func (id ID) teardown(inside bool) error {
	deadline := time.Now().Add(Patience(60 * time.Second))
	for {
		pids := id.Processes()
		if len(pids) == 0 {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("processes %v survive SIGKILL", pids)
		}
		for _, pid := range pids {
			unix.Kill(pid, unix.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
	var errs []error
	for _, dir := range id.CgroupDirs() {
		errs = append(errs, removeCgroup(dir))
	}
	if inside {
		_, err := process.Sweep(runDir) // the server was killed, and no later one cleans up after its plugins
		errs = append(errs, err)
		exec.Command("ip", "link", "del", "eth0").Run() // also removes the host's end
		os.Chdir("/")
		for _, dir := range []string{"/run", "/var/log", "/var/lib", "/usr/libexec", "/opt", "/etc"} {
			if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
				errs = append(errs, fmt.Errorf("unmount %s: %w", dir, err))
			}
		}
	} else {
		for _, link := range []string{id.Veth(), id.Bridge()} {
			if _, err := os.Stat("/sys/class/net/" + link); err == nil {
				exec.Command("ip", "link", "del", link).Run()
			}
		}
	}
	if id.Base != "" {
		errs = append(errs, os.RemoveAll(id.Base))
	}
	return errors.Join(errs...)
}

// Processes returns those that see the sandbox's marker (the server, its shims, programs that a test started there) and
// those in the sandbox's cgroups (containers, which have their own root), without the caller.
func (id ID) Processes() []int {
	found := map[int]bool{}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if content, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", pid, marker)); err == nil && string(content) == id.Name() {
			found[pid] = true
		}
	}
	for _, dir := range id.CgroupDirs() {
		filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				content, _ := os.ReadFile(filepath.Join(path, "cgroup.procs"))
				for _, f := range strings.Fields(string(content)) {
					if pid, err := strconv.Atoi(f); err == nil && pid > 0 {
						found[pid] = true
					}
				}
			}
			return nil
		})
	}
	delete(found, os.Getpid())
	var pids []int
	for pid := range found {
		if !Zombie(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// Zombie reports whether the process has ended, and at most waits for its parent.
func Zombie(pid int) bool {
	stat, err := procstat.Read(pid)
	return err != nil || stat.Ended()
}
