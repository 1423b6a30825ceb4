package sandbox

import (
	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
)

// Metrics loads the cgroup of a process as containerd's libraries know it, which write their own form of statistics.
// On cgroup v1 it takes 2 ms. It returns nil where there is no cgroup, or no such process.
func Metrics(pid int) any {
	if cgroups.Mode() == cgroups.Unified {
		path, err := cgroup2.PidGroupPath(pid)
		if err != nil {
			return nil
		}
		if m, err := cgroup2.Load(path); err == nil {
			return m
		}
		return nil
	}
	if m, err := cgroup1.Load(cgroup1.PidPath(pid)); err == nil {
		return m
	}
	return nil
}
