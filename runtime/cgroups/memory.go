package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Memory is what the kernel counted of a group's memory.
type Memory struct {
	// Peak is how much it used at most, in bytes, without swap; 0: not reported (v2 before Linux 5.19).
	Peak int64
	// Kills is how many processes the kernel killed because memory ran out.
	Kills int64
}

// ContainerMemory reads the memory of a container's group. cgroupsPath is that of the container's OCI specification: a
// path or, with the systemd driver, SLICE:PREFIX:NAME.
func ContainerMemory(cgroupsPath string) (Memory, error) {
	return containerMemory(mountpoint, DetectMode(), cgroupsPath)
}

// PodKills returns how many processes of a container's pod the kernel has killed because memory ran out, with cgroup
// v2. It counts those of groups that are gone, too.
func PodKills(cgroupsPath string) (int64, error) {
	return podKills(mountpoint, DetectMode(), cgroupsPath)
}

func podKills(mount string, mode Mode, cgroupsPath string) (int64, error) {
	if mode != V2 {
		return 0, errors.New("only cgroup v2 counts what was in groups below")
	}
	return field(filepath.Join(mount, filepath.Dir(groupPath(cgroupsPath)), "memory.events"), "oom_kill")
}

// Source: https://docs.kernel.org/admin-guide/cgroup-v1/memory.html and
// https://docs.kernel.org/admin-guide/cgroup-v2.html.
func containerMemory(mount string, mode Mode, cgroupsPath string) (m Memory, err error) {
	group, peak, events := filepath.Join(mount, groupPath(cgroupsPath)), "memory.peak", "memory.events"
	switch mode {
	case V1, Hybrid:
		group, peak, events = filepath.Join(mount, "memory", groupPath(cgroupsPath)), "memory.max_usage_in_bytes", "memory.oom_control"
	case None:
		return m, errors.New("no cgroups are mounted")
	}
	if m.Kills, err = field(filepath.Join(group, events), "oom_kill"); err != nil {
		return m, err
	}
	text, err := os.ReadFile(filepath.Join(group, peak))
	if errors.Is(err, os.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	m.Peak, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return m, err
}

// groupPath returns the directory of a group below its hierarchy. A slice is a directory in those that its name begins
// with.
//
// Source: runc's libcontainer/cgroups/systemd (getUnitName), and systemd.slice(5).
func groupPath(cgroupsPath string) string {
	parts := strings.Split(cgroupsPath, ":")
	if len(parts) != 3 {
		return cgroupsPath
	}
	path, names := "", strings.Split(strings.TrimSuffix(parts[0], ".slice"), "-")
	for i := range names {
		path = filepath.Join(path, strings.Join(names[:i+1], "-")+".slice")
	}
	return filepath.Join(path, parts[1]+"-"+parts[2]+".scope")
}

// field returns the number of a line "NAME NUMBER" in a file; 0: it has no such line.
func field(file, name string) (int64, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if key, number, _ := strings.Cut(lines.Text(), " "); key == name {
			n, err := strconv.ParseInt(number, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("%s: %s is not a number: %q", file, name, number)
			}
			return n, nil
		}
	}
	return 0, nil
}
