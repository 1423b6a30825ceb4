package pluginadmin

import (
	"runtime"
	"strings"
	"testing"
)

// A plugin's metrics are not parsed when they could become large: 16 MiB of "a 1" took a gigabyte.
func TestOwnMetricsAreBounded(t *testing.T) {
	for name, tc := range map[string]struct {
		text string
		most uint64 // bytes
		err  string
	}{
		"large":        {strings.Repeat("a 1\n", 4<<20), 64 << 10, "more than 1024 KiB"},
		"short lines":  {strings.Repeat("a 1\n", maxOwnLines+1), 64 << 10, "lines, more than 40000"},
		"many series":  {strings.Repeat("a 1\n", maxOwnLines-1), 32 << 20, ""},
		"many types":   {strings.Repeat("# TYPE a gauge\n", maxOwnLines-1), 64 << 20, "TYPE"},
		"many labels":  {"a{" + strings.Repeat(`b="",`, maxOwnText/5-10) + "} 1\n", 96 << 20, "label"},
		"many buckets": {"# TYPE h histogram\n" + strings.Repeat("h_bucket{le=\"1\"} 1\n", maxOwnLines-100), 96 << 20, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			families, err := parseOwn([]byte(tc.text))
			runtime.ReadMemStats(&after)
			if (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if all := after.TotalAlloc - before.TotalAlloc - uint64(len(tc.text)); all > tc.most { // without the copy of the text
				t.Errorf("it took %d KiB, more than %d", all>>10, tc.most>>10)
			}
			if own := seriesOf(families, "x"); len(own) > maxOwnSeries {
				t.Errorf("%d series are reported", len(own))
			}
		})
	}
}

// FuzzOwnMetrics: whatever a plugin writes can be exposed beside the metrics of others, or is an error.
func FuzzOwnMetrics(f *testing.F) {
	f.Add([]byte("# HELP x_total of a\n# TYPE x_total counter\nx_total{z=\"1\",plugin=\"liar\"} 4\n"))
	f.Add([]byte("y 1\ny 2\n"))
	f.Add([]byte("{{{"))
	f.Add([]byte("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n"))
	f.Add([]byte("# TYPE s summary\ns{quantile=\"0.5\"} 1\ns_sum NaN\ns_count 1e99\n"))
	f.Add([]byte("a{b=\"\xff\"} 1 1\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		families, err := parseOwn(text)
		if err != nil {
			return
		}
		own := seriesOf(families, "x")
		if len(own) > maxOwnSeries {
			t.Errorf("%d series", len(own))
		}
		_ = own.consistent() // an error leaves them out
	})
}
