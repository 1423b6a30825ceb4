// Package cgroups detects how this host mounts its cgroups and which driver fits, so that containerd and the kubelet,
// which must agree, get the same answer. It creates groups only for plugins (groups.go).
package cgroups

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Mode is the layout of the cgroup hierarchies.
type Mode string

const (
	None   Mode = "none"   // not mounted: no container can run
	V1     Mode = "v1"     // one hierarchy per controller
	Hybrid Mode = "hybrid" // v1 controllers, and an empty v2 hierarchy at /sys/fs/cgroup/unified
	V2     Mode = "v2"     // the unified hierarchy
)

// The drivers that the kubelet and containerd support.
const (
	DriverCgroupfs = "cgroupfs"
	DriverSystemd  = "systemd"
)

const mountpoint = "/sys/fs/cgroup"

// DetectMode returns the layout of this host.
func DetectMode() Mode {
	return mode(fsType)
}

// mode decides by the types of the file systems, as cgroups(7) describes the layouts.
func mode(typeOf func(path string) (int64, error)) Mode {
	root, err := typeOf(mountpoint)
	if err != nil {
		return None
	}
	if root == unix.CGROUP2_SUPER_MAGIC {
		return V2
	}
	if unified, err := typeOf(filepath.Join(mountpoint, "unified")); err == nil && unified == unix.CGROUP2_SUPER_MAGIC {
		return Hybrid
	}
	if memory, err := typeOf(filepath.Join(mountpoint, "memory")); err == nil && memory == unix.CGROUP_SUPER_MAGIC {
		return V1
	}
	return None
}

func fsType(path string) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, err
	}
	return int64(st.Type), nil
}

// DetectCgroupDriver returns DriverSystemd where systemd manages a v2 hierarchy, since two managers must not write to
// one tree, and DriverCgroupfs everywhere else. With v1, systemd has its own tree and cgroupfs works beside it.
func DetectCgroupDriver() string {
	_, err := os.Stat("/run/systemd/system") // as sd_booted(3)
	return driver(DetectMode(), err == nil)
}

func driver(m Mode, systemd bool) string {
	if systemd && m == V2 {
		return DriverSystemd
	}
	return DriverCgroupfs
}
