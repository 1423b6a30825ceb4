package metrics

import (
	"fmt"
	"io"
	"reflect"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/metrics-server/pkg/storage"
)

// answer is the output of a kubelet of v1.37, shortened: pod "two" has two containers, "young" has only its start time,
// "half" lacks the memory of one container.
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

func TestDecodeOddResponses(t *testing.T) {
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
		{"others only", "resource_scrape_error 1\n", storage.MetricsPoint{}, true},
		{"a wrong line", "node_cpu_usage_seconds_total 2\nnode_memory_working_set_bytes five\n", storage.MetricsPoint{}, true},
		{"another name in the braces", "node_cpu_usage_seconds_total{\"x\"} 2\n", storage.MetricsPoint{}, true},
		{"a wrong line of others", "node_cpu_usage_seconds_total 2\nx y z\nnode_memory_working_set_bytes 5\n", storage.MetricsPoint{Timestamp: asked, CumulativeCPUUsed: 2e9, MemoryUsage: 5}, false},
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

// The pieces in which an answer is parsed do not show in the result.
func TestDecodeManyContainers(t *testing.T) {
	var text strings.Builder
	const n = 2000
	for _, family := range []string{"container_cpu_usage_seconds_total", "container_memory_working_set_bytes", "container_start_time_seconds", "container_swap_usage_bytes"} {
		for i := range n {
			fmt.Fprintf(&text, "%s{container=\"container\",namespace=\"namespace-%d\",pod=\"a-deployment-with-a-long-name-7c6f9d8b5d-%05d\"} %d 1633253812125\n", family, i%7, i, i+1)
		}
	}
	text.WriteString("node_cpu_usage_seconds_total 1\nnode_memory_working_set_bytes 1\n")
	got, err := decode(strings.NewReader(text.String()), "n1", time.Time{})
	if err != nil || len(got.Pods) != n || len(got.Nodes) != 1 {
		t.Fatalf("%d pods, %v (the answer has %d bytes)", len(got.Pods), err, text.Len())
	}
	for i := range n {
		name := types.NamespacedName{Namespace: fmt.Sprintf("namespace-%d", i%7), Name: fmt.Sprintf("a-deployment-with-a-long-name-7c6f9d8b5d-%05d", i)}
		want := storage.MetricsPoint{StartTime: time.Unix(int64(i+1), 0), Timestamp: time.UnixMilli(1633253812125), CumulativeCPUUsed: uint64(i+1) * 1e9, MemoryUsage: uint64(i + 1)}
		if p := got.Pods[name].Containers["container"]; !p.StartTime.Equal(want.StartTime) || p.CumulativeCPUUsed != want.CumulativeCPUUsed || p.MemoryUsage != want.MemoryUsage {
			t.Fatalf("%s: %+v, want %+v", name, p, want)
		}
	}
}

// endless repeats a line forever.
type endless struct {
	line string
	read int
}

func (e *endless) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		n += copy(p[n:], e.line[(e.read+n)%len(e.line):])
	}
	e.read += n
	return n, nil
}

// What a kubelet answers costs a bounded number of bytes, whatever it is: 16 MiB of "a 1" were a gigabyte once, for
// each node and every 15 s.
func TestDecodeHostileResponses(t *testing.T) {
	label := strings.Repeat(`x="",`, lineLimit/5-20)
	for name, tc := range map[string]struct {
		in   io.Reader
		most uint64 // bytes
		err  string
	}{
		"unused series":    {&endless{line: "a 1\n"}, 64 << 10, "longer than 2 MiB"},
		"the same series":  {&endless{line: "container_start_time_seconds 1\n"}, 96 << 20, "longer than 2 MiB"},
		"many labels":      {&endless{line: "container_start_time_seconds{" + label + "} 1\n"}, 96 << 20, "2 MiB|label"},
		"one line":         {&endless{line: "x"}, 64 << 10, "a line of the response is longer than 4096 bytes"},
		"empty lines":      {&endless{line: "\n"}, 64 << 10, "longer than 2 MiB"},
		"comments":         {&endless{line: "# TYPE node_cpu_usage_seconds_total counter\n"}, 64 << 10, "longer than 2 MiB"},
		"other containers": {containers(answerLimit), 96 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			batch, err := decode(tc.in, "n1", time.Time{})
			runtime.ReadMemStats(&after)
			if (err == nil) != (tc.err == "") || err != nil && !regexp.MustCompile(tc.err).MatchString(err.Error()) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if all := after.TotalAlloc - before.TotalAlloc; all > tc.most {
				t.Errorf("it took %d KiB, more than %d", all>>10, tc.most>>10)
			}
			// What is in use at the same time is what counts.
			runtime.GC()
			runtime.ReadMemStats(&after)
			if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 16<<20 {
				t.Errorf("%d KiB are kept of it", kept>>10)
			}
			runtime.KeepAlive(batch)
		})
	}
}

// containers is an answer of that many bytes at most, with another container in each line.
func containers(size int) io.Reader {
	var text strings.Builder
	for i := 0; text.Len() < size-100; i++ {
		fmt.Fprintf(&text, "container_start_time_seconds{pod=\"%d\"} 1\n", i)
	}
	return strings.NewReader(text.String())
}
