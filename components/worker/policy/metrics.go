package policy

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"kubelith.io/kubelith/components/worker/policy/kernel"
)

// drops are the metrics of a run: what the kernel has counted is read when they are asked for.
type drops struct {
	run *run
}

var _ prometheus.Collector = (*drops)(nil)

var (
	droppedPackets = prometheus.NewDesc("kubelith_network_policy_dropped_packets_total",
		"Packets of this node's pods that a network policy did not allow. One that several policies isolate together counts for each.",
		[]string{"direction", "policy"}, nil)
	classCount = prometheus.NewDesc("kubelith_network_policy_classes",
		"Groups of this node's pods that the same network policies select.", []string{"direction"}, nil)
)

// Describe implements prometheus.Collector.
func (*drops) Describe(out chan<- *prometheus.Desc) {
	out <- droppedPackets
	out <- classCount
}

// Collect implements prometheus.Collector.
func (d *drops) Collect(out chan<- prometheus.Metric) {
	d.run.mu.Lock()
	if d.run.mode != enforcing || d.run.compiler == nil {
		d.run.mu.Unlock()
		return
	}
	classes := d.run.compiler.Classes()
	d.run.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	counted, err := kernel.Dropped(ctx)
	if err != nil {
		return // there is no table any more
	}
	type key struct{ direction, policy string }
	packets, number := map[key]uint64{}, map[string]int{}
	for _, c := range classes {
		number[c.Direction.String()]++
		for _, policy := range c.Policies {
			packets[key{c.Direction.String(), policy}] += counted[c.Name]
		}
	}
	for k, n := range packets {
		out <- prometheus.MustNewConstMetric(droppedPackets, prometheus.CounterValue, float64(n), k.direction, k.policy)
	}
	for direction, n := range number {
		out <- prometheus.MustNewConstMetric(classCount, prometheus.GaugeValue, float64(n), direction)
	}
}
