package scheduling

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// updateMetrics count what plugins are sent about nodes.
type updateMetrics struct {
	bytes, nodes *metrics.CounterVec
}

func newUpdateMetrics() *updateMetrics {
	counter := func(name, help string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Name: "kubelith_scheduling_plugin_" + name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"plugin"})
	}
	f := &updateMetrics{
		bytes: counter("update_bytes_total", "Bytes sent to a scheduling plugin to update its copy of the nodes."),
		nodes: counter("update_nodes_total", "Nodes sent to a scheduling plugin because they had changed."),
	}
	// A second scheduler in the process, as in tests, counts for itself: /metrics shows the first one's.
	_ = legacyregistry.Register(f.bytes)
	_ = legacyregistry.Register(f.nodes)
	return f
}

func (m *updateMetrics) sent(plugin string, bytes, nodes int) {
	m.bytes.WithLabelValues(plugin).Add(float64(bytes))
	m.nodes.WithLabelValues(plugin).Add(float64(nodes))
}
