package results

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestMedian(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{3}, 3}, {[]float64{4, 1}, 2.5}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 3, 2, 1}, 2.5},
	} {
		if got := Median(c.in); got != c.want {
			t.Errorf("Median(%v) = %v, want %v", c.in, got, c.want)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("the median of nothing is a number")
	}
}

func TestPercentile(t *testing.T) {
	var hundred []float64
	for i := 100; i > 0; i-- {
		hundred = append(hundred, float64(i))
	}
	for _, c := range []struct {
		in   []float64
		p    float64
		want float64
	}{
		{hundred, 99, 99}, {hundred, 100, 100}, {hundred, 0, 1}, {[]float64{7}, 99, 7}, {[]float64{2, 1}, 50, 1}, {[]float64{2, 1}, 51, 2},
	} {
		if got := Percentile(c.in, c.p); got != c.want {
			t.Errorf("percentile %v of %d values is %v, not %v", c.p, len(c.in), got, c.want)
		}
	}
	if !math.IsNaN(Percentile(nil, 99)) {
		t.Error("a percentile of nothing is a number")
	}
}

func TestQuantile(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		buckets map[float64]float64
		q, want float64
	}{
		{map[float64]float64{1: 50, 2: 100, inf: 100}, 0.99, 1.98},
		{map[float64]float64{1: 50, 2: 100, inf: 100}, 0.5, 1},
		{map[float64]float64{1: 100, 2: 100, inf: 100}, 0.99, 0.99},
		{map[float64]float64{1: 10, 2: 90, inf: 100}, 0.99, 2},
	} {
		if got, ok := Quantile(c.buckets, c.q); !ok || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("quantile %v of %v is %v, not %v", c.q, c.buckets, got, c.want)
		}
	}
	for _, none := range []map[float64]float64{nil, {1: 0, inf: 0}} {
		if got, ok := Quantile(none, 0.99); ok {
			t.Errorf("a quantile of nothing is %v", got)
		}
	}
}

// The ranks are those of any table of the sign test.
func TestInterval(t *testing.T) {
	for _, c := range []struct {
		n         int
		ok        bool
		low, high float64
	}{
		{5, false, 0, 0}, {6, true, 1, 6}, {7, true, 1, 7}, {9, true, 2, 8}, {20, true, 6, 15},
	} {
		var v []float64
		for i := c.n; i > 0; i-- {
			v = append(v, float64(i))
		}
		low, high, ok := Interval(v)
		if ok != c.ok || low != c.low || high != c.high {
			t.Errorf("%d values: [%v, %v] %v, want [%v, %v] %v", c.n, low, high, ok, c.low, c.high, c.ok)
		}
	}
}

func TestRatioInterval(t *testing.T) {
	a, b := []float64{1, 1, 1, 1, 1, 1, 1}, []float64{2, 2, 2, 2, 2, 2, 4}
	low, high, ok := RatioInterval(a, b)
	if !ok || low > 0.5 || high != 0.5 {
		t.Errorf("[%v, %v] %v", low, high, ok)
	}
	if _, _, ok := RatioInterval(a[:5], b); ok {
		t.Error("five values are enough")
	}
}

func TestStore(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "r.jsonl")
	s, err := Open(path, "b1")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Add("pods", 1, Kubelith, Sample{Figure: ColdReady, Value: 3}, Sample{Figure: FiftyPods, Value: 8}); err != nil {
		t.Fatal(err)
	}
	if s, err = Open(path, "b1"); err != nil {
		t.Fatal(err)
	}
	if !s.Done("pods", 1, Kubelith) || s.Done("pods", 2, Kubelith) || s.Done("idle", 1, Kubelith) || s.Done("pods", 1, Product) {
		t.Error("Done is wrong after reading back")
	}
	if v := s.Values(Kubelith, ColdReady); len(v) != 1 || v[0] != 3 {
		t.Errorf("values %v", v)
	}
	if _, err := Open(path, "b2"); err == nil || !strings.Contains(err.Error(), "another build") {
		t.Errorf("another build: %v", err)
	}
	if err := os.WriteFile(path, []byte("{\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path, "b1"); err == nil {
		t.Error("a damaged file is accepted")
	}
}

func TestTable(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "r.jsonl"), "b")
	if err != nil {
		t.Fatal(err)
	}
	add := func(cluster string, samples ...Sample) {
		if err := s.Add("pods", 1, cluster, samples...); err != nil {
			t.Fatal(err)
		}
	}
	add(Floor, Sample{Figure: FiftyFloor, Value: 2})
	add(Kubelith, Sample{Figure: ColdReady, Value: 3}, Sample{Figure: FiftyPods, Value: 5})
	add(Composition, Sample{Figure: ColdReady, Value: 4}, Sample{Figure: FiftyPods, Value: 6})
	add(Product, Sample{Figure: ColdReady, Value: 6}, Sample{Figure: FiftyPods, Value: 5.5})
	var b bytes.Buffer
	Table(&b, s, 90e6)
	for _, want := range []string{
		"| start to node Ready, cold (s) | 3.00 | 4.00 | 6.00 | 0.75 | 0.50 | <= 0.6 | yes |",
		"| 50 pods minus the floor (s) | 3.00 | 4.00 | 3.50 | 0.75 | 0.86 |  |  |",
		"| 50 pods in one Deployment to Ready (s) | 5.00 | 6.00 | 5.50 | 0.83 | 0.91 | <= 0.5 | no |",
		"| executable, packed with zstd -19 (MB) | 90.0 | | | | | <= 81 | no |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("missing %q in\n%s", want, b.String())
		}
	}
}

func TestNetworkTable(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "r.jsonl"), "b")
	if err != nil {
		t.Fatal(err)
	}
	for way, gbits := range map[string]float64{BareVeth: 40, VXLAN: 10} {
		if err := s.Add("network", 1, way, Sample{Figure: Throughput, Value: gbits}, Sample{Figure: RoundTrip, Value: 30}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Add("agent", 1, Agent, Sample{Figure: AgentMemory, Value: 160}, Sample{Figure: AgentCPU, Value: 0.5}); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	NetworkTable(&b, s)
	for _, want := range []string{
		"| vxlan | 10.00 | 30.0 |  |  | 0.25 |",
		"| anonymous memory of an agent, idle with 10 pods (MB) | 160 | <= 150 | no |",
		"| CPU of an agent, idle with 10 pods (% of a core) | 0.50 | <= 1 | yes |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("missing %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), HostGW) {
		t.Errorf("a way that was not measured is in\n%s", b.String())
	}
}

func TestScaleTable(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "r.jsonl"), "b")
	if err != nil {
		t.Fatal(err)
	}
	for stage, mb := range map[string]float64{ScaleEmpty: 150, ScalePods: 900} {
		if err := s.Add("scale", 1, stage, Sample{Figure: ServerMemory, Value: mb}); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	ScaleTable(&b, s)
	if want := "| anonymous memory at the end (MB) | 150 |  |  | 900 |"; !strings.Contains(b.String(), want) {
		t.Errorf("missing %q in\n%s", want, b.String())
	}
}

// More pods per second are better, less of everything else.
func TestScaleCompareTable(t *testing.T) {
	s, err := Open(filepath.Join(t.TempDir(), "samples"), "b")
	if err != nil {
		t.Fatal(err)
	}
	for cluster, v := range map[string]float64{Kubelith: 90, Product: 40} {
		if err := s.Add("scale", 1, ScaleColumn(cluster, ScaleMaking), Sample{Figure: PodsScheduled, Value: v}, Sample{Figure: GetP99, Value: v}); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	scaleCompareTable(&out, s)
	for _, want := range []string{
		"| pods made and scheduled per second | pods being made | 90.0 |  | 40.0 | 2.25 | >= 2.0 | yes |",
		"| GET of a ConfigMap, p99 (ms) | pods being made | 90.0 |  | 40.0 | 2.25 | <= 1.0 | no |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
