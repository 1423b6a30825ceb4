package cgroups

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMode(t *testing.T) {
	for name, tc := range map[string]struct {
		types map[string]int64
		want  Mode
	}{
		"unified": {map[string]int64{"/sys/fs/cgroup": unix.CGROUP2_SUPER_MAGIC}, V2},
		"hybrid": {map[string]int64{"/sys/fs/cgroup": unix.TMPFS_MAGIC, "/sys/fs/cgroup/unified": unix.CGROUP2_SUPER_MAGIC,
			"/sys/fs/cgroup/memory": unix.CGROUP_SUPER_MAGIC}, Hybrid},
		"legacy":      {map[string]int64{"/sys/fs/cgroup": unix.TMPFS_MAGIC, "/sys/fs/cgroup/memory": unix.CGROUP_SUPER_MAGIC}, V1},
		"only sysfs":  {map[string]int64{"/sys/fs/cgroup": unix.SYSFS_MAGIC}, None},
		"not mounted": {nil, None},
	} {
		t.Run(name, func(t *testing.T) {
			got := mode(func(path string) (int64, error) {
				if typ, ok := tc.types[path]; ok {
					return typ, nil
				}
				return 0, os.ErrNotExist
			})
			if got != tc.want {
				t.Errorf("mode %s, want %s", got, tc.want)
			}
		})
	}
}

func TestDriver(t *testing.T) {
	for _, tc := range []struct {
		mode    Mode
		systemd bool
		want    string
	}{
		{V2, true, DriverSystemd},
		{V2, false, DriverCgroupfs},
		{Hybrid, true, DriverCgroupfs},
		{V1, true, DriverCgroupfs},
	} {
		if got := driver(tc.mode, tc.systemd); got != tc.want {
			t.Errorf("driver(%s, systemd %v) = %s, want %s", tc.mode, tc.systemd, got, tc.want)
		}
	}
}
