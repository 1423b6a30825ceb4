package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/host/sandbox"
)

const cgroupMount = "/sys/fs/cgroup"

// CgroupV2 reports whether the host has only the unified hierarchy.
func CgroupV2() bool { return sandbox.CgroupV2() }

// CgroupDir returns the directory of a process's cgroup for a v1 controller, or of its only cgroup under v2.
func CgroupDir(t testing.TB, pid int, controller string) string {
	t.Helper()
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		t.Fatalf("cgroup of process %d: %v", pid, err)
	}
	for line := range strings.Lines(string(content)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		if CgroupV2() && parts[0] == "0" {
			return filepath.Join(cgroupMount, parts[2])
		}
		for _, c := range strings.Split(parts[1], ",") {
			if c == controller {
				return filepath.Join(cgroupMount, controller, parts[2])
			}
		}
	}
	t.Fatalf("process %d is in no %s cgroup:\n%s", pid, controller, content)
	return ""
}

// CgroupFile reads a file of a process's cgroup: v1file of the controller, or v2file where the host has v2.
func CgroupFile(t testing.TB, pid int, controller, v1file, v2file string) string {
	t.Helper()
	file := v1file
	if CgroupV2() {
		file = v2file
	}
	content, err := os.ReadFile(filepath.Join(CgroupDir(t, pid, controller), file))
	if err != nil {
		t.Fatalf("cgroup of process %d: %v", pid, err)
	}
	return strings.TrimSpace(string(content))
}

// CgroupNumber is CgroupFile as a number; "max" is -1.
func CgroupNumber(t testing.TB, pid int, controller, v1file, v2file string) int64 {
	t.Helper()
	text := CgroupFile(t, pid, controller, v1file, v2file)
	if text == "max" {
		return -1
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("cgroup of process %d: %v", pid, err)
	}
	return n
}
