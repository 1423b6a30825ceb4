package metrics

import (
	"io"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// decode reads a kubelet's /metrics/resource. A value without a time is of the moment when the kubelet was asked.
//
// Names, units and what is left out are those of metrics-server's own decoder (pkg/scraper/client/resource), which needs
// the whole of Prometheus for its parser: a pod of which one container is not measured completely is left out, as its sum
// would be wrong.
func decode(in io.Reader, node string, asked time.Time) (*storage.MetricsBatch, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(in)
	if err != nil {
		return nil, err
	}
	batch := &storage.MetricsBatch{Nodes: map[string]storage.MetricsPoint{}, Pods: map[types.NamespacedName]storage.PodMetricsPoint{}}
	var own storage.MetricsPoint
	for _, m := range families["node_cpu_usage_seconds_total"].GetMetric() {
		own.CumulativeCPUUsed, own.Timestamp = count(value(m)*1e9), at(m, asked)
	}
	for _, m := range families["node_memory_working_set_bytes"].GetMetric() {
		own.MemoryUsage = count(value(m))
	}
	if complete(own) {
		batch.Nodes[node] = own
	}

	containers := map[container]storage.MetricsPoint{}
	each := func(family string, set func(*storage.MetricsPoint, *dto.Metric)) {
		for _, m := range families[family].GetMetric() {
			name := containerOf(m)
			point := containers[name]
			set(&point, m)
			containers[name] = point
		}
	}
	each("container_cpu_usage_seconds_total", func(p *storage.MetricsPoint, m *dto.Metric) {
		p.CumulativeCPUUsed, p.Timestamp = count(value(m)*1e9), at(m, asked)
	})
	each("container_memory_working_set_bytes", func(p *storage.MetricsPoint, m *dto.Metric) { p.MemoryUsage = count(value(m)) })
	each("container_start_time_seconds", func(p *storage.MetricsPoint, m *dto.Metric) {
		p.StartTime = time.UnixMilli(int64(count(value(m) * 1e3)))
	})
	incomplete := map[types.NamespacedName]bool{}
	for name, point := range containers {
		pod, ok := batch.Pods[name.pod]
		if !ok {
			pod = storage.PodMetricsPoint{Containers: map[string]storage.MetricsPoint{}}
			batch.Pods[name.pod] = pod
		}
		pod.Containers[name.name] = point
		incomplete[name.pod] = incomplete[name.pod] || !complete(point)
	}
	for pod, is := range incomplete {
		if is {
			delete(batch.Pods, pod)
		}
	}
	return batch, nil
}

// container names one container of the node.
type container struct {
	pod  types.NamespacedName
	name string
}

func containerOf(m *dto.Metric) (c container) {
	for _, l := range m.GetLabel() {
		switch l.GetName() {
		case "namespace":
			c.pod.Namespace = l.GetValue()
		case "pod":
			c.pod.Name = l.GetValue()
		case "container":
			c.name = l.GetValue()
		}
	}
	return c
}

func complete(p storage.MetricsPoint) bool { return p.CumulativeCPUUsed != 0 && p.MemoryUsage != 0 }

// value is that of a counter, of a gauge, or of a metric without a type.
func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() // only one of them is there
}

// at is when m was measured.
func at(m *dto.Metric, asked time.Time) time.Time {
	if m.TimestampMs == nil {
		return asked
	}
	return time.UnixMilli(m.GetTimestampMs())
}

// count is v as a whole number; 0, which means not measured, when it is none.
func count(v float64) uint64 {
	if !(v > 0 && v < math.MaxInt64) {
		return 0
	}
	return uint64(v)
}
