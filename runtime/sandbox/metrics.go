package sandbox

import (
	"fmt"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
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

// Stats returns the statistics of what Metrics has returned for a task.
func Stats(id string, metrics any) (*ptypes.Any, error) {
	var stats any
	var err error
	switch group := metrics.(type) {
	case cgroup1.Cgroup:
		stats, err = group.Stat(cgroup1.IgnoreNotExist)
	case *cgroup2.Manager:
		stats, err = group.Stat()
	default:
		err = fmt.Errorf("the cgroup of %s: %w", id, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, err
	}
	content, err := typeurl.MarshalAny(stats)
	if err != nil {
		return nil, err
	}
	return typeurl.MarshalProto(content), nil
}
