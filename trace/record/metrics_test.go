package record

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestMetrics(t *testing.T) {
	s := NewStore(Options{Bytes: 1 << 20})
	m := NewMetrics(s)
	r := Record{Object: Ref{UID: "u", Resource: "pods"}, Stage: Pull, Start: 1, Duration: 3 * time.Millisecond}
	s.Add(r)
	r.Count = 2 // an agent sends it again, because it was counted again
	s.Add(r)
	s.Add(Record{Object: r.Object, Stage: Event, Start: 2})
	if n := testutil.CollectAndCount(m, "kubelith_stage_duration_seconds"); n != 1 {
		t.Errorf("%d histograms, want one of the pull", n)
	}
	want := `# HELP kubelith_trace_objects Objects in the flight recorder.
# TYPE kubelith_trace_objects gauge
kubelith_trace_objects 1
# HELP kubelith_trace_limit_bytes Memory that the flight recorder may take.
# TYPE kubelith_trace_limit_bytes gauge
kubelith_trace_limit_bytes 1.048576e+06
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "kubelith_trace_objects", "kubelith_trace_limit_bytes"); err != nil {
		t.Error(err)
	}
}
