package sandbox

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

const cgroupMount = "/sys/fs/cgroup"

// CgroupV2 reports whether the host has only the unified hierarchy.
func CgroupV2() bool {
	_, err := os.Stat(filepath.Join(cgroupMount, "cgroup.controllers"))
	return err == nil
}

// hierarchies returns the mounted cgroup directories: one under v2; one for each controller, the named systemd one and
// the hybrid "unified" one under v1. Links such as cpu -> cpu,cpuacct are left out.
func hierarchies() []string {
	if CgroupV2() {
		return []string{cgroupMount}
	}
	var dirs []string
	entries, _ := os.ReadDir(cgroupMount)
	for _, e := range entries {
		if dir := filepath.Join(cgroupMount, e.Name()); e.IsDir() {
			if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
				dirs = append(dirs, dir)
			}
		}
	}
	return dirs
}

// CgroupDirs returns the sandbox's existing cgroups.
func (id ID) CgroupDirs() []string {
	var dirs []string
	for _, h := range hierarchies() {
		dir := filepath.Join(h, id.Name())
		if _, err := os.Stat(dir); err == nil {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}

// makeCgroups creates the root for the sandbox's pods in every hierarchy.
func (id ID) makeCgroups() error {
	for _, h := range hierarchies() {
		dir := filepath.Join(h, id.Name())
		if CgroupV2() {
			enableControllers(h)
		}
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("create cgroup: %w", err)
		}
		if CgroupV2() {
			enableControllers(dir)
		}
		// A v1 cpuset starts empty and takes no process until it has CPUs and memory nodes.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			if value, err := os.ReadFile(filepath.Join(h, file)); err == nil && filepath.Base(h) == "cpuset" {
				if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
					return fmt.Errorf("set up cgroup: %w", err)
				}
			}
		}
	}
	return nil
}

// enableControllers enables every controller for the children, one by one: the kernel may refuse some.
func enableControllers(dir string) {
	have, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	for _, c := range strings.Fields(string(have)) {
		os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
	}
}

// removeCgroup removes a cgroup and its children. The kernel needs a moment after the last process.
func removeCgroup(dir string) error {
	var err error
	for range 100 {
		var dirs []string
		filepath.WalkDir(dir, func(path string, d os.DirEntry, werr error) error {
			if werr == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		err = nil
		for i := len(dirs) - 1; i >= 0; i-- {
			if rerr := os.Remove(dirs[i]); rerr != nil && !os.IsNotExist(rerr) {
				err = rerr
			}
		}
		if err == nil {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return fmt.Errorf("remove cgroup: %w", err)
}
