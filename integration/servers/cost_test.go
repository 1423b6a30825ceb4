package servers

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// cost is what one server of a cluster takes.
type cost struct {
	memory  float64 // anonymous, in MB
	cpu     float64 // while idle, in percent of a core
	latency time.Duration
}

// TestCost reports what three servers cost beside one, without nodes. It asserts nothing: `make bench-ha`.
func TestCost(t *testing.T) {
	if os.Getenv("KUBELITH_LEADER_KILLS") == "" {
		t.Skip("KUBELITH_LEADER_KILLS is not set: see make bench-ha")
	}
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true})
	c.servers[0].WaitAPI(t)
	one := measure(t, c.servers...)[0]
	for range 2 {
		c.add(t)
	}
	leader := c.leader(t)
	t.Logf("%-24s %10s %10s %14s", "", "memory", "idle CPU", "write (median)")
	line := func(name string, k cost) {
		t.Logf("%-24s %7.0f MB %8.2f %% %14s", name, k.memory, k.cpu, k.latency.Round(100*time.Microsecond))
	}
	line("one server", one)
	var sum cost
	for i, k := range measure(t, c.servers...) {
		name := "one of three"
		if c.servers[i] == leader {
			name += ", leads etcd"
		}
		line(name, k)
		sum.memory, sum.cpu, sum.latency = sum.memory+k.memory, sum.cpu+k.cpu, sum.latency+k.latency/time.Duration(len(c.servers))
	}
	t.Logf("three servers, beside one: memory %.2f, idle CPU %.2f, latency of a write %.2f", sum.memory/one.memory, sum.cpu/one.cpu, float64(sum.latency)/float64(one.latency))
}

// measure waits until servers are idle, and measures each.
func measure(t *testing.T, servers ...*harness.Server) []cost {
	t.Helper()
	const settle, idle, writes = 45 * time.Second, 60 * time.Second, 200
	time.Sleep(settle)
	out := make([]cost, len(servers))
	for i, s := range servers {
		out[i].cpu = -harness.CPUSeconds(t, s.PID())
	}
	time.Sleep(idle)
	for i, s := range servers {
		out[i].cpu = (out[i].cpu + harness.CPUSeconds(t, s.PID())) / idle.Seconds() * 100
		out[i].memory = harness.AnonymousMB(t, s.PID())
	}
	for i, s := range servers {
		var took []time.Duration
		maps := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault)
		for n := range writes {
			began := time.Now()
			if err := writeTo(t.Context(), maps, fmt.Sprintf("cost-%d-%d-%d", len(servers), i, n)); err != nil {
				t.Fatal(err)
			}
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		out[i].latency = took[writes/2]
	}
	return out
}
