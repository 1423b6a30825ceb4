package otlp

import (
	"fmt"
	"testing"

	"go.opentelemetry.io/collector/pdata/pcommon"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/pdata/ptrace/ptraceotlp"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// TestCollectorReads: the decoders of the OpenTelemetry Collector, which are not made from the code that encodes here,
// read what is exported and what is written to files. The times, IDs and parents are right there.
func TestCollectorReads(t *testing.T) {
	store := record.NewStore(record.Options{})
	deployment := record.Object{Ref: record.Ref{UID: "u-deployment", Resource: "deployments.apps", Namespace: "default", Name: "web"}}
	set := record.Object{Ref: record.Ref{UID: "u-rs", Resource: "replicasets.apps", Namespace: "default", Name: "web-1"}, Owners: []string{"u-deployment"}}
	for _, o := range []record.Object{deployment, set, pod()} {
		store.Describe(o)
		for _, r := range records() {
			r.Object = o.Ref
			store.Add(r)
		}
	}
	history, _ := store.Lookup("deployments.apps", "default", "web")
	timeline := trace.Assemble(store, history, func(record.Ref) bool { return true }, t0+int64(2e9))

	e := NewExporter("", store, nil)
	all, _ := store.Since(0, exportRecords)
	exported := e.spans(all)
	for name, c := range map[string]struct {
		spans  []*tracepb.ResourceSpans
		decode func(t *testing.T, spans []*tracepb.ResourceSpans) ptrace.Traces
	}{
		"by gRPC": {exported, func(t *testing.T, spans []*tracepb.ResourceSpans) ptrace.Traces {
			sent, err := proto.Marshal(&collectorpb.ExportTraceServiceRequest{ResourceSpans: spans})
			if err != nil {
				t.Fatal(err)
			}
			got := ptraceotlp.NewExportRequest()
			if err := got.UnmarshalProto(sent); err != nil {
				t.Fatal(err)
			}
			return got.Traces()
		}},
		"in a file": {Timeline(timeline), func(t *testing.T, spans []*tracepb.ResourceSpans) ptrace.Traces {
			text, err := JSON(spans)
			if err != nil {
				t.Fatal(err)
			}
			got, err := (&ptrace.JSONUnmarshaler{}).UnmarshalTraces(text)
			if err != nil {
				t.Fatal(err)
			}
			return got
		}},
	} {
		t.Run(name, func(t *testing.T) { checkTraces(t, c.spans, c.decode(t, c.spans)) })
	}
}

// checkTraces compares what was decoded with what was encoded.
func checkTraces(t *testing.T, sent []*tracepb.ResourceSpans, got ptrace.Traces) {
	type named struct {
		trace pcommon.TraceID
		span  pcommon.SpanID
	}
	var spans []ptrace.Span
	known := map[named]bool{}
	for _, resource := range got.ResourceSpans().All() {
		if name, ok := resource.Resource().Attributes().Get("service.name"); !ok || name.Str() != "kubelith" {
			t.Errorf("the resource has the attributes %v", resource.Resource().Attributes().AsRaw())
		}
		for _, scope := range resource.ScopeSpans().All() {
			for _, s := range scope.Spans().All() {
				id := named{s.TraceID(), s.SpanID()}
				if known[id] {
					t.Errorf("%s: there is another span %v", s.Name(), id)
				}
				known[id], spans = true, append(spans, s)
			}
		}
	}
	want := map[string]int{}
	for _, resource := range sent {
		for _, s := range resource.ScopeSpans[0].Spans {
			want[fmt.Sprintf("%s %x %x %d %d", s.Name, s.TraceId, s.SpanId, s.StartTimeUnixNano, s.EndTimeUnixNano)]++
		}
	}
	if len(want) < 5 {
		t.Fatalf("there are %d spans only", len(want))
	}
	for _, s := range spans {
		if s.TraceID().IsEmpty() || s.SpanID().IsEmpty() || s.Name() == "" {
			t.Errorf("%q: trace %s, span %s", s.Name(), s.TraceID(), s.SpanID())
		}
		if s.StartTimestamp() == 0 || s.EndTimestamp() < s.StartTimestamp() {
			t.Errorf("%s is from %v to %v", s.Name(), s.StartTimestamp(), s.EndTimestamp())
		}
		if parent := (named{s.TraceID(), s.ParentSpanID()}); !parent.span.IsEmpty() && !known[parent] {
			t.Errorf("%s: there is no parent %v", s.Name(), parent)
		}
		want[fmt.Sprintf("%s %s %s %d %d", s.Name(), s.TraceID(), s.SpanID(), s.StartTimestamp(), s.EndTimestamp())]--
	}
	for what, n := range want {
		if n != 0 {
			t.Errorf("%s: %d more were sent than came", what, n)
		}
	}
}
