package compare

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/runtime/cgroups"
)

// The small machine: what edge devices and the cheapest VMs have.
const (
	smallMemory = 1 << 30 // bytes, page cache included
	smallPods   = 20
	cpuPeriod   = 100_000 // microseconds; one core is a quota of one period
)

// TestSmall prints what the default configuration takes in a cgroup of one core and 1 GiB, in which are the server, its
// shims, its plugins and its pods. A process that is killed for want of memory fails it.
func TestSmall(t *testing.T) {
	rounds := results.Number(t, "SMALL_ROUNDS", 0)
	if rounds == 0 {
		t.Skip("not a benchmark run: use make bench-small")
	}
	set := load(t)
	figures := map[string][]float64{}
	var order []string
	for i := range rounds {
		t.Run(fmt.Sprint("round-", i), func(t *testing.T) {
			for _, s := range small(t, newCluster(t, set, results.Kubelith), set.idle) {
				if i == 0 {
					order = append(order, s.Figure)
				}
				figures[s.Figure] = append(figures[s.Figure], s.Value)
			}
		})
	}
	if t.Failed() {
		return
	}
	fmt.Printf("\n| one core and 1 GiB, medians of %d | |\n|---|---|\n", rounds)
	for _, figure := range order {
		fmt.Printf("| %s | %.2f |\n", figure, results.Median(figures[figure]))
	}
}

func small(t *testing.T, c *cluster, idle time.Duration) (out []results.Sample) {
	add := func(figure string, value float64) { out = append(out, results.Sample{Figure: figure, Value: value}) }
	g := limit(t, c)
	launch := c.launch
	c.launch = func() []*process {
		all := launch()
		g.add(t, all[0])
		return all
	}
	client, ready, pod, _ := coldStart(t, c)
	add("start to node Ready, cold (s)", ready)
	add("cold start to first pod Ready (s)", pod)
	if err := client.CoreV1().Pods(metav1.NamespaceDefault).Delete(t.Context(), "first", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(settle)
	add(fmt.Sprintf("%d pods in one Deployment to Ready (s)", smallPods), deploy(t, client, smallPods))
	c.verify(t, client)
	time.Sleep(8 * settle) // memory is returned half a minute after a load
	before, began := c.usage(t), time.Now()
	time.Sleep(idle)
	after, window := c.usage(t), time.Since(began).Seconds()
	add(fmt.Sprintf("anonymous memory, idle with %d pods (MB)", smallPods), after.memory().total)
	add(fmt.Sprintf("CPU, idle with %d pods (%% of the core)", smallPods), after.since(before, 100/window).total)
	g.requireNoKills(t, c)
	add(fmt.Sprintf("deleting %d pods until their objects are gone (s)", smallPods), removeAll(t, client))
	g.requireNoKills(t, c)
	all, err := cgroups.ContainerMemory(c.CgroupRoot())
	if err != nil {
		t.Fatal(err)
	}
	add("most memory of all, page cache included (MB)", float64(all.Peak)/1e6)
	c.reportRestarts(t)
	return out
}

// limited is the cgroup of a cluster: with v1 those of the hierarchies that have a limit.
type limited struct{ dirs []string }

// limit makes the cluster's cgroup a small machine.
func limit(t *testing.T, c *cluster) *limited {
	t.Helper()
	g := &limited{}
	for _, files := range []map[string]string{
		{"memory.limit_in_bytes": strconv.Itoa(smallMemory), "memory.max": strconv.Itoa(smallMemory)},
		{"cpu.cfs_quota_us": strconv.Itoa(cpuPeriod), "cpu.max": fmt.Sprintf("%d %d", cpuPeriod, cpuPeriod)},
	} {
		found := false
		for name, value := range files {
			for _, dir := range c.CgroupDirs() {
				file := filepath.Join(dir, name)
				if _, err := os.Stat(file); err != nil {
					continue
				}
				if err := os.WriteFile(file, []byte(value), 0); err != nil {
					t.Fatal(err)
				}
				found = true
				if !slices.Contains(g.dirs, dir) {
					g.dirs = append(g.dirs, dir)
				}
			}
		}
		if !found {
			t.Fatalf("no cgroup of the cluster has one of the files %v", files)
		}
	}
	for _, dir := range g.dirs {
		if err := os.Mkdir(filepath.Join(dir, "server"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// add puts a program that has just been started beside the cluster's pods.
func (g *limited) add(t *testing.T, p *process) {
	deadline := time.Now().Add(5 * time.Second)
	for p.pid() == 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	for _, dir := range g.dirs {
		if err := os.WriteFile(filepath.Join(dir, "server", "cgroup.procs"), []byte(strconv.Itoa(p.pid())), 0); err != nil {
			t.Error(err)
		}
	}
}

// requireNoKills fails the test for each group, of those that there are now, in which the kernel has killed a process
// for want of memory.
func (g *limited) requireNoKills(t *testing.T, c *cluster) {
	t.Helper()
	root := g.dirs[0] // the memory's, or the only one
	err := filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			group := c.CgroupRoot() + strings.TrimPrefix(path, root)
			var m cgroups.Memory
			if m, err = cgroups.ContainerMemory(group); m.Kills > 0 {
				t.Errorf("%s: %d processes were killed for want of memory", group, m.Kills)
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // of a pod that ends
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
