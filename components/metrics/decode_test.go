package metrics

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// answer is what a kubelet of v1.37 says, shortened: pod "two" has two containers, of "young" nothing but the start is
// known, "half" misses the memory of one container.
const answer = `# HELP container_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the container in core-seconds
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="a",namespace="ns",pod="two"} 4.710169 1633253812125
container_cpu_usage_seconds_total{container="b",namespace="ns",pod="two"} 0.5 1633253812500
container_cpu_usage_seconds_total{container="a",namespace="other",pod="half"} 1 1633253812125
container_cpu_usage_seconds_total{container="b",namespace="other",pod="half"} 1 1633253812125
# HELP container_memory_working_set_bytes [STABLE] Current working set of the container in bytes
# TYPE container_memory_working_set_bytes gauge
container_memory_working_set_bytes{container="a",namespace="ns",pod="two"} 1.253376e+07 1633253812125
container_memory_working_set_bytes{container="b",namespace="ns",pod="two"} 4096 1633253812500
container_memory_working_set_bytes{container="a",namespace="other",pod="half"} 4096 1633253812125
# HELP container_start_time_seconds [STABLE] Start time of the container since unix epoch in seconds
# TYPE container_start_time_seconds gauge
container_start_time_seconds{container="a",namespace="ns",pod="two"} 1.633252712250e+09
container_start_time_seconds{container="b",namespace="ns",pod="two"} 1.633252713e+09
container_start_time_seconds{container="a",namespace="ns",pod="young"} 1.633253812e+09
# HELP container_swap_usage_bytes [ALPHA] Current amount of the container swap usage in bytes
# TYPE container_swap_usage_bytes gauge
container_swap_usage_bytes{container="a",namespace="ns",pod="two"} 0 1633253812125
# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 357.35491 1633253809720
# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.616273408e+09 1633253809720
# HELP pod_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the pod in core-seconds
# TYPE pod_cpu_usage_seconds_total counter
pod_cpu_usage_seconds_total{namespace="ns",pod="two"} 5.3 1633253803935
# HELP resource_scrape_error [STABLE] 1 if there was an error while getting container metrics, 0 otherwise
# TYPE resource_scrape_error gauge
resource_scrape_error 0
`

func TestDecode(t *testing.T) {
	got, err := decode(strings.NewReader(answer), "n1", time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	want := &storage.MetricsBatch{
		Nodes: map[string]storage.MetricsPoint{
			"n1": {Timestamp: time.UnixMilli(1633253809720), CumulativeCPUUsed: 357354910000, MemoryUsage: 1616273408},
		},
		Pods: map[types.NamespacedName]storage.PodMetricsPoint{
			{Namespace: "ns", Name: "two"}: {Containers: map[string]storage.MetricsPoint{
				"a": {StartTime: time.UnixMilli(1633252712250), Timestamp: time.UnixMilli(1633253812125), CumulativeCPUUsed: 4710169000, MemoryUsage: 12533760},
				"b": {StartTime: time.UnixMilli(1633252713000), Timestamp: time.UnixMilli(1633253812500), CumulativeCPUUsed: 500000000, MemoryUsage: 4096},
			}},
		},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

func TestDecodeOddAnswers(t *testing.T) {
	asked := time.UnixMilli(1700000000000)
	for _, c := range []struct {
		name, text string
		want       storage.MetricsPoint // of the node; zero: it has none
		fails      bool
	}{
		{"empty", "", storage.MetricsPoint{}, false},
		{"no time, no types", "node_cpu_usage_seconds_total 2\nnode_memory_working_set_bytes 5\n", storage.MetricsPoint{Timestamp: asked, CumulativeCPUUsed: 2e9, MemoryUsage: 5}, false},
		{"no memory", "node_cpu_usage_seconds_total 2\n", storage.MetricsPoint{}, false},
		{"no CPU", "node_memory_working_set_bytes 5\n", storage.MetricsPoint{}, false},
		{"negative", "node_cpu_usage_seconds_total -2\nnode_memory_working_set_bytes 5\n", storage.MetricsPoint{}, false},
		{"not a number", "node_cpu_usage_seconds_total 2\nnode_memory_working_set_bytes NaN\n", storage.MetricsPoint{}, false},
		{"too much for an integer", "node_cpu_usage_seconds_total 2\nnode_memory_working_set_bytes 1e300\n", storage.MetricsPoint{}, false},
		{"cut off", answer[:len(answer)/2], storage.MetricsPoint{}, true},
		{"HTML", "<html><body>502 Bad Gateway</body></html>\n", storage.MetricsPoint{}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode(strings.NewReader(c.text), "n1", asked)
			if (err != nil) != c.fails {
				t.Fatalf("error %v", err)
			}
			if err == nil && got.Nodes["n1"] != c.want {
				t.Errorf("got %v, want %v", got.Nodes["n1"], c.want)
			}
		})
	}
}
