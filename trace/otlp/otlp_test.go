package otlp

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"strings"
	"testing"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

const (
	ms = int64(time.Millisecond)
	t0 = int64(1790000000) * int64(time.Second)
)

func pod() record.Object {
	return record.Object{Ref: record.Ref{UID: "u-pod", Resource: "pods", Namespace: "default", Name: "web-1"}, Owners: []string{"u-rs"}}
}

func records() []record.Record {
	return []record.Record{
		{Stage: record.Request, Name: "create", Actor: "alice", Agent: "kubectl/v1", Code: 201, Start: t0, Duration: 9 * time.Millisecond,
			Steps: []record.Step{{Name: "admission", Detail: "PodSecurity", Offset: time.Millisecond, Duration: time.Millisecond}, {Name: "etcd", Offset: -1, Duration: 2 * time.Millisecond}}},
		{Stage: record.Schedule, Start: t0 + 10*ms, Duration: time.Millisecond, Error: "0/1 nodes are available",
			Verdicts: []record.Verdict{{Nodes: []string{"node-1"}, Count: 1, Plugin: "NodeResourcesFit", Reason: "Insufficient cpu"}}},
		{Stage: record.Pull, Name: "example.com/a:1", Node: "node-1", Bytes: 1 << 20, Start: t0 + 20*ms, Duration: time.Second},
	}
}

func attribute(s *tracepb.Span, key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return strings.TrimSpace(a.Value.String())
		}
	}
	return ""
}

// spansOf returns the records of an object as spans, by the node on which they happened.
func spansOf(o record.Object, root string, records []record.Record) []*tracepb.ResourceSpans {
	var b batch
	id := TraceID(o, root)
	created := creation(key(o.Ref))
	for i := range records {
		b.add(records[i].Node, recordSpans(o, id, created, &records[i])...)
	}
	return b.resources
}

func TestSpans(t *testing.T) {
	o := pod()
	all := records()
	for i := range all {
		all[i].Object = o.Ref
	}
	got := spansOf(o, "u-deployment", all)
	if len(got) != 2 {
		t.Fatalf("%d resources, want one for the control plane and one for the node", len(got))
	}
	spans := got[0].ScopeSpans[0].Spans
	if len(spans) != 4 {
		t.Fatalf("%d spans, want the request, its two steps and the scheduling: %v", len(spans), spans)
	}
	create, admission, etcd, schedule := spans[0], spans[1], spans[2], spans[3]
	pull := got[1].ScopeSpans[0].Spans[0]
	for _, s := range []*tracepb.Span{create, admission, etcd, schedule, pull} {
		if !bytes.Equal(s.TraceId, TraceID(record.Object{}, "u-deployment")) || len(s.TraceId) != 16 || len(s.SpanId) != 8 {
			t.Errorf("%s: trace %x, span %x", s.Name, s.TraceId, s.SpanId)
		}
	}
	if !bytes.Equal(create.ParentSpanId, creation("u-rs")) {
		t.Error("the creation of an owned object is not a part of its owner's")
	}
	if !bytes.Equal(schedule.ParentSpanId, create.SpanId) || !bytes.Equal(pull.ParentSpanId, create.SpanId) || !bytes.Equal(etcd.ParentSpanId, create.SpanId) {
		t.Error("what follows the creation is not a part of it")
	}
	if got := int64(etcd.StartTimeUnixNano) - t0; got != 2*ms {
		t.Errorf("a step without an offset starts at %d ns, want after the one before", got)
	}
	if schedule.Status.GetCode() != tracepb.Status_STATUS_CODE_ERROR || len(schedule.Events) != 1 {
		t.Errorf("a failed attempt is %v", schedule)
	}
	for s, want := range map[*tracepb.Span][2]string{
		create: {"k8s.pod.name", "web-1"}, schedule: {"k8s.namespace.name", "default"}, pull: {"container.image.name", "example.com/a:1"},
	} {
		if got := attribute(s, want[0]); !strings.Contains(got, want[1]) {
			t.Errorf("%s: %s is %s, want %s", s.Name, want[0], got, want[1])
		}
	}
	o.Trace, o.Parent = strings.Repeat("ab", 16), strings.Repeat("cd", 8)
	named := spansOf(o, "u-deployment", all)[0].ScopeSpans[0].Spans[0]
	if hex.EncodeToString(named.TraceId) != o.Trace || hex.EncodeToString(named.ParentSpanId) != o.Parent {
		t.Errorf("trace %x, parent %x: not those of the annotation", named.TraceId, named.ParentSpanId)
	}
}

func TestRoot(t *testing.T) {
	known := map[string]record.Object{"u-rs": {Ref: record.Ref{UID: "u-rs"}, Owners: []string{"u-deployment"}}, "u-a": {Owners: []string{"u-a"}}}
	get := func(uid string) (record.Object, bool) { o, ok := known[uid]; return o, ok }
	for want, o := range map[string]record.Object{
		"u-deployment": pod(), "u-a": known["u-a"], "u-b": {Ref: record.Ref{UID: "u-b"}},
	} {
		if got := Root(o, get); got != want {
			t.Errorf("the root is %s, want %s", got, want)
		}
	}
}

func TestTimeline(t *testing.T) {
	at := time.Unix(0, t0)
	line := &trace.Timeline{Object: pod().Ref, Spans: []trace.Span{
		{ID: 1, Object: pod().Ref, Stage: record.Sync, Node: "node-1", Begin: at, End: at.Add(time.Second), Critical: true},
		{ID: 2, Parent: 1, Object: pod().Ref, Stage: record.Start, Name: "main", Node: "node-1", Begin: at, End: at.Add(time.Millisecond)},
	}}
	got := Timeline(line)
	if len(got) != 1 || len(got[0].ScopeSpans[0].Spans) != 2 {
		t.Fatalf("got %v", got)
	}
	spans := got[0].ScopeSpans[0].Spans
	if len(spans[0].ParentSpanId) != 0 || !bytes.Equal(spans[1].ParentSpanId, spans[0].SpanId) {
		t.Errorf("parents %x and %x", spans[0].ParentSpanId, spans[1].ParentSpanId)
	}
	text, err := JSON(got)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		ResourceSpans []struct {
			ScopeSpans []struct {
				Spans []struct {
					TraceID string `json:"traceId"`
					SpanID  string `json:"spanId"`
					Parent  string `json:"parentSpanId"`
					Name    string
				}
			}
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	s := file.ResourceSpans[0].ScopeSpans[0].Spans[1]
	if s.TraceID != hex.EncodeToString(spans[1].TraceId) || s.SpanID != hex.EncodeToString(spans[1].SpanId) || s.Parent != hex.EncodeToString(spans[0].SpanId) {
		t.Errorf("IDs of the file: %+v", s)
	}
}
