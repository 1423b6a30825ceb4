package metrics

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// decode reads a kubelet's /metrics/resource. A value without a time gets the time of the request.
//
// Names, units and omissions are those of metrics-server's own decoder (pkg/scraper/client/resource), whose parser
// needs the whole of Prometheus: a pod with an incompletely measured container is left out, as its sum would be wrong.
func decode(in io.Reader, node string, asked time.Time) (*storage.MetricsBatch, error) {
	batch := &storage.MetricsBatch{Nodes: map[string]storage.MetricsPoint{}, Pods: map[types.NamespacedName]storage.PodMetricsPoint{}}
	var own storage.MetricsPoint
	containers := map[container]storage.MetricsPoint{}
	each := func(set func(*storage.MetricsPoint, *dto.Metric)) func(*dto.Metric) {
		return func(m *dto.Metric) {
			name := containerOf(m)
			point := containers[name]
			set(&point, m)
			containers[name] = point
		}
	}
	take := map[string]func(*dto.Metric){
		"node_cpu_usage_seconds_total": func(m *dto.Metric) {
			own.CumulativeCPUUsed, own.Timestamp = count(value(m)*1e9), at(m, asked)
		},
		"node_memory_working_set_bytes": func(m *dto.Metric) { own.MemoryUsage = count(value(m)) },
		"container_cpu_usage_seconds_total": each(func(p *storage.MetricsPoint, m *dto.Metric) {
			p.CumulativeCPUUsed, p.Timestamp = count(value(m)*1e9), at(m, asked)
		}),
		"container_memory_working_set_bytes": each(func(p *storage.MetricsPoint, m *dto.Metric) { p.MemoryUsage = count(value(m)) }),
		"container_start_time_seconds": each(func(p *storage.MetricsPoint, m *dto.Metric) {
			p.StartTime = time.UnixMilli(int64(count(value(m) * 1e3)))
		}),
	}
	families := map[string]bool{}
	for name := range take {
		families[name] = true
	}
	err := wanted(in, families, func(piece []byte) error {
		parser := expfmt.NewTextParser(model.UTF8Validation)
		found, err := parser.TextToMetricFamilies(bytes.NewReader(piece))
		for name, family := range found {
			set, ok := take[name]
			if !ok {
				return fmt.Errorf("%q is not a resource metric", name) // a name in the braces
			}
			for _, m := range family.GetMetric() {
				set(m)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if complete(own) {
		batch.Nodes[node] = own
	}
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

// container identifies one container of the node.
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

// value returns the value of a metric without a type: the comments with the types are not read.
func value(m *dto.Metric) float64 { return m.GetUntyped().GetValue() }

// at returns when m was measured.
func at(m *dto.Metric, asked time.Time) time.Time {
	if m.TimestampMs == nil {
		return asked
	}
	return time.UnixMilli(m.GetTimestampMs())
}

// count returns v as a whole number; 0, which means not measured, when it is none.
func count(v float64) uint64 {
	if !(v > 0 && v < math.MaxInt64) {
		return 0
	}
	return uint64(v)
}
