package pluginadmin

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/plugins/host"
)

// collector collects the metrics of all plugins: the Observer's counters, their current state, and the plugins' own
// metrics.
type collector struct {
	host     Host
	observer *Observer
	own      *ownMetrics

	up, starts, inFlight, memory, cpu *prometheus.Desc
}

// runMetrics collects the metrics of the current run; none between runs.
type runMetrics struct{ current atomic.Pointer[collector] }

var _ prometheus.Collector = (*runMetrics)(nil)

// set makes c the collector until end is called.
func (m *runMetrics) set(c *collector) (end func()) {
	m.current.Store(c)
	return func() { m.current.CompareAndSwap(c, nil) }
}

// Describe implements prometheus.Collector. It describes nothing, as the plugins' own metrics are not known in advance.
func (m *runMetrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *runMetrics) Collect(out chan<- prometheus.Metric) {
	if c := m.current.Load(); c != nil {
		c.Collect(out)
	}
}

func newCollector(ctx context.Context, h Host, o *Observer, log logrus.FieldLogger) *collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubelith_plugin_"+name, help, []string{"plugin", "kind"}, nil)
	}
	return &collector{
		host: h, observer: o, own: newOwnMetrics(ctx, h, log),
		up:       desc("up", "1 when the plugin is ready, else 0."),
		starts:   desc("starts_total", "Processes of the plugin that were started."),
		inFlight: desc("in_flight", "Calls under way."),
		memory:   desc("memory_bytes", "Anonymous memory of the plugin's processes."),
		cpu:      desc("cpu_seconds_total", "CPU time of the plugin's process and of its children that have ended."),
	}
}

// Collect implements the part of prometheus.Collector that runMetrics needs.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	c.observer.calls.Collect(out)
	c.observer.durations.Collect(out)
	c.observer.changes.Collect(out)
	for _, s := range c.host.States() {
		if s.Phase == string(host.Draining) {
			continue // its replacement has the same labels
		}
		send := func(d *prometheus.Desc, t prometheus.ValueType, value float64) {
			out <- prometheus.MustNewConstMetric(d, t, value, s.Name, string(s.Kind))
		}
		up := 0.0
		if s.Phase == string(host.Ready) {
			up = 1
		}
		send(c.up, prometheus.GaugeValue, up)
		send(c.starts, prometheus.CounterValue, float64(s.Starts))
		send(c.inFlight, prometheus.GaugeValue, float64(s.InFlight))
		if s.PID == 0 {
			continue
		}
		if bytes, ok := memoryOf(s); ok {
			send(c.memory, prometheus.GaugeValue, bytes)
		}
		if stat, err := procstat.Read(s.PID); err == nil {
			send(c.cpu, prometheus.CounterValue, stat.CPU)
		}
	}
	c.own.collect(out)
}

// memoryOf returns the anonymous memory, in bytes, of all processes in the plugin's cgroup or, without a cgroup, of its
// first process.
func memoryOf(s host.State) (float64, bool) {
	if s.Cgroup != "" {
		stat := filepath.Join(s.Cgroup, "memory.stat")
		if n, ok := number(stat, "anon "); ok { // v2
			return n, true
		}
		if n, ok := number(stat, "total_rss "); ok { // v1
			return n, true
		}
	}
	kib, ok := number(filepath.Join("/proc", strconv.Itoa(s.PID), "status"), "RssAnon:")
	return kib * 1024, ok
}

// number returns the number after prefix in a line of a file.
func number(file, prefix string) (float64, bool) {
	content, err := os.ReadFile(file)
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(content)) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			fields := strings.Fields(rest)
			if len(fields) == 0 {
				return 0, false
			}
			n, err := strconv.ParseFloat(fields[0], 64)
			return n, err == nil
		}
	}
	return 0, false
}
