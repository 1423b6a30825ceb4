package scheduling

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// figures count what plugins are sent of nodes.
type figures struct {
	bytes, nodes *metrics.CounterVec
}

func newFigures() *figures {
	counter := func(name, help string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Name: "kubelith_scheduling_plugin_" + name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"plugin"})
	}
	f := &figures{
		bytes: counter("update_bytes_total", "Bytes sent to a scheduling plugin to update its picture of the nodes."),
		nodes: counter("update_nodes_total", "Nodes sent to a scheduling plugin because they had changed."),
	}
	// A second scheduler in the process, as in tests, counts for itself: /metrics shows the first one's.
	_ = legacyregistry.Register(f.bytes)
	_ = legacyregistry.Register(f.nodes)
	return f
}

func (f *figures) sent(plugin string, bytes, nodes int) {
	f.bytes.WithLabelValues(plugin).Add(float64(bytes))
	f.nodes.WithLabelValues(plugin).Add(float64(nodes))
}
