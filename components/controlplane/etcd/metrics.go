package etcd

import (
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// etcd registers its metrics in Prometheus' default registry, with those of all other libraries of the process. The
// API server serves another one.

// metrics hands on those of etcd from all that are gathered. It describes none: which there are depends on what etcd
// has done so far.
type metrics struct{ all prometheus.Gatherer }

var _ prometheus.Collector = metrics{}

// ofEtcd begin the names of what an operator of etcd watches. Those of the API server's client begin otherwise.
// Source: https://etcd.io/docs/v3.6/metrics/.
func ofEtcd() []string {
	return []string{"etcd_cluster_", "etcd_disk_", "etcd_mvcc_", "etcd_network_", "etcd_server_", "etcd_snap_"}
}

// Describe implements prometheus.Collector.
func (metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m metrics) Collect(out chan<- prometheus.Metric) {
	families, _ := m.all.Gather() // with an error it returns the rest
	for _, f := range families {
		if !slices.ContainsFunc(ofEtcd(), func(prefix string) bool { return strings.HasPrefix(f.GetName(), prefix) }) {
			continue
		}
		desc := prometheus.NewDesc(f.GetName(), f.GetHelp(), nil, nil)
		for _, one := range f.GetMetric() {
			out <- gathered{desc, one}
		}
	}
}

// gathered is a metric of another registry.
type gathered struct {
	desc  *prometheus.Desc
	value *dto.Metric
}

var _ prometheus.Metric = gathered{}

// Desc implements prometheus.Metric.
func (g gathered) Desc() *prometheus.Desc { return g.desc }

// Write implements prometheus.Metric.
func (g gathered) Write(to *dto.Metric) error {
	to.Label, to.Gauge, to.Counter = g.value.Label, g.value.Gauge, g.value.Counter
	to.Summary, to.Untyped, to.Histogram = g.value.Summary, g.value.Untyped, g.value.Histogram
	return nil
}

// slowShare is the share of syncs that SlowSyncs leaves out, the slowest ones.
const slowShare = 0.01

// SlowSyncs returns how long 99 of 100 syncs of etcd's log to the disk took at most, since the process began; 0 if
// there was none.
func SlowSyncs() time.Duration { return slowSyncs(prometheus.DefaultGatherer) }

func slowSyncs(all prometheus.Gatherer) time.Duration {
	families, _ := all.Gather()
	for _, f := range families {
		if f.GetName() == "etcd_disk_wal_fsync_duration_seconds" && len(f.GetMetric()) == 1 {
			return quantile(f.GetMetric()[0].GetHistogram(), 1-slowShare)
		}
	}
	return 0
}

// quantile returns the end of the bucket that has a quantile; of the last one with an end, if it is behind all.
func quantile(h *dto.Histogram, q float64) time.Duration {
	if h.GetSampleCount() == 0 {
		return 0
	}
	var end float64
	for _, b := range h.GetBucket() {
		end = b.GetUpperBound()
		if float64(b.GetCumulativeCount()) >= q*float64(h.GetSampleCount()) {
			break
		}
	}
	return time.Duration(end * float64(time.Second))
}
