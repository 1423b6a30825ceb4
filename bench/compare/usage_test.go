package compare

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/procstat"
)

// use is what one process uses.
type use struct {
	name   string
	anon   float64 // MB of 10^6 bytes: its proportional share of anonymous memory
	cpu    float64 // seconds, children that it waited for included
	isLoad bool    // a process of a pod
}

// usage is that of all processes of a cluster, shims and pods included, by process id.
type usage map[int]use

// usage reads /proc: all processes in the sandbox's mount namespace and all in its pods' cgroups.
func (c *cluster) usage(t *testing.T) usage {
	t.Helper()
	holder := c.HolderPID()
	home, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", holder))
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	all := usage{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == holder {
			continue
		}
		cgroup, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		load := strings.Contains(string(cgroup), c.CgroupRoot()+"/")
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid)); !load && (err != nil || ns != home) {
			continue
		}
		if u, ok := readUse(pid); ok {
			u.isLoad = load
			all[pid] = u
		}
	}
	return all
}

// cpuSeconds is the CPU time that the cluster's living processes and their children have used.
func (c *cluster) cpuSeconds(t *testing.T) float64 {
	t.Helper()
	total := 0.0
	for _, u := range c.usage(t) {
		total += u.cpu
	}
	return total
}

// readUse is false for a process that has just ended.
func readUse(pid int) (use, bool) {
	stat, err := procstat.Read(pid)
	if err != nil {
		return use{}, false
	}
	u := use{name: stat.Name, cpu: stat.CPU}
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return u, true // a kernel thread or a process that is ending has none
	}
	for line := range strings.Lines(string(rollup)) {
		if value, ok := strings.CutPrefix(line, "Pss_Anon:"); ok {
			kib, _ := strconv.ParseFloat(strings.Fields(value)[0], 64)
			u.anon = kib * 1024 / 1e6
		}
	}
	return u, true
}

// breakdown is a total and its parts by program.
type breakdown struct {
	total float64
	parts map[string]float64
}

func (u use) part() string {
	if u.isLoad {
		return "pods"
	}
	if strings.HasPrefix(u.name, "containerd-shim") {
		return "shims"
	}
	return u.name
}

func (b *breakdown) add(part string, v float64) {
	if b.parts == nil {
		b.parts = map[string]float64{}
	}
	b.total += v
	b.parts[part] += v
}

// String lists the parts, the largest first.
func (b breakdown) String() string {
	parts := slices.SortedFunc(maps.Keys(b.parts), func(x, y string) int {
		switch {
		case b.parts[x] > b.parts[y]:
			return -1
		case b.parts[x] < b.parts[y]:
			return 1
		}
		return strings.Compare(x, y)
	})
	var out []string
	for _, p := range parts {
		out = append(out, fmt.Sprintf("%s %.1f", p, b.parts[p]))
	}
	return strings.Join(out, ", ")
}

func (u usage) memory() breakdown {
	var b breakdown
	for _, p := range u {
		b.add(p.part(), p.anon)
	}
	return b
}

// since is the CPU time used since before, times scale.
func (u usage) since(before usage, scale float64) breakdown {
	var b breakdown
	for pid, p := range u {
		b.add(p.part(), (p.cpu-before[pid].cpu)*scale)
	}
	return b
}
