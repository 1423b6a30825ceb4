// Package otlp turns what the flight recorder holds into spans of OpenTelemetry's protocol, and exports them to a
// collector.
//
// IDs follow from what they name, so that two exports of the same are the same, and servers and agents need not agree:
//
//   - The trace is the one that the creation of the object named (record.Object.Trace); else its ID is derived from the
//     UID of the topmost owner: a Deployment, its ReplicaSets and their pods are one trace.
//   - The creation of an object is the parent of everything else that happened to it, and its own parent is the
//     creation of its owner.
package otlp

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	resourcepb "go.opentelemetry.io/proto/otlp/resource/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// scope names this package in exported spans.
const scope = "kubelith.io/kubelith/trace"

// Timeline returns a timeline as spans, by node. Its trace is that of the requested object.
func Timeline(t *trace.Timeline) []*tracepb.ResourceSpans {
	var b batch
	id := TraceID(record.Object{Ref: t.Object}, "")
	ids := map[int][]byte{}
	for i := range t.Spans {
		s := &t.Spans[i]
		ids[s.ID] = derive("span", key(s.Object), string(s.Stage), s.Name, strconv.FormatInt(s.Begin.UnixNano(), 10), strconv.Itoa(s.ID))[:8]
		r := record.Record{
			Object: s.Object, Stage: s.Stage, Name: s.Name, Node: s.Node, Actor: s.By,
			Message: s.Message, Error: s.Error, Count: s.Count, Bytes: s.Bytes, Peak: s.Peak, Verdicts: s.Verdicts,
		}
		out := newSpan(id, ids[s.ID], ids[s.Parent], &r, s.Begin.UnixNano(), s.Duration())
		if s.Critical {
			out.Attributes = append(out.Attributes, boolean("kubelith.critical", true))
		}
		b.add(s.Node, out)
	}
	return b.resources
}

// TraceID returns the trace of an object. root is the UID of its topmost owner that is known; empty: it has none.
func TraceID(o record.Object, root string) []byte {
	if id, err := hex.DecodeString(o.Trace); err == nil && len(id) == 16 {
		return id
	}
	return derive("trace", cmp.Or(root, key(o.Ref)))[:16]
}

// key identifies an object: by its UID or, for one that was never created, by its name.
func key(r record.Ref) string {
	return cmp.Or(r.UID, r.Resource+"/"+r.Namespace+"/"+r.Name)
}

// creation is the ID of the span of an object's creation.
func creation(key string) []byte { return derive("create", key)[:8] }

// derive returns a hash of texts.
func derive(texts ...string) []byte {
	sum := sha256.Sum256([]byte("kubelith\x00" + strings.Join(texts, "\x00")))
	return sum[:]
}

// created reports whether a record is the request that created its object.
func created(r *record.Record) bool {
	return r.Stage == record.Request && r.Name == "create" && r.Error == "" && r.Code < 400
}

// recordSpans returns a record and its steps. first is the ID of the object's creation.
func recordSpans(o record.Object, traceID, first []byte, r *record.Record) []*tracepb.Span {
	id, parent := derive("record", key(o.Ref), string(r.Stage), r.Name, strconv.FormatInt(r.Start, 10))[:8], first
	if created(r) {
		id, parent = first, nil
		if above, err := hex.DecodeString(o.Parent); err == nil && len(above) == 8 {
			parent = above
		} else if len(o.Owners) > 0 {
			parent = creation(o.Owners[0])
		}
	}
	whole := newSpan(traceID, id, parent, r, r.Start, r.Duration)
	whole.Attributes = append(whole.Attributes, list("kubelith.owners", o.Owners)...)
	spans := []*tracepb.Span{whole}
	var known time.Duration // where the steps whose offset is unknown go: one after the other
	for i, step := range r.Steps {
		offset := step.Offset
		if offset < 0 {
			offset = known
		}
		known = offset + step.Duration
		s := newSpan(traceID, derive("step", string(id), strconv.Itoa(i))[:8], id,
			&record.Record{Object: o.Ref, Stage: record.Stage(step.Name), Name: step.Detail, Error: step.Error}, r.Start+int64(offset), step.Duration)
		spans = append(spans, s)
	}
	return spans
}

// newSpan returns the span of a record.
func newSpan(traceID, id, parent []byte, r *record.Record, start int64, took time.Duration) *tracepb.Span {
	name := string(r.Stage)
	if r.Name != "" {
		name += " " + r.Name
	}
	s := &tracepb.Span{
		TraceId: traceID, SpanId: id, ParentSpanId: parent, Name: name, Kind: tracepb.Span_SPAN_KIND_INTERNAL,
		StartTimeUnixNano: uint64(start), EndTimeUnixNano: uint64(start + int64(max(took, 0))), Attributes: attributes(r),
	}
	if r.Error != "" {
		s.Status = &tracepb.Status{Code: tracepb.Status_STATUS_CODE_ERROR, Message: r.Error}
	}
	for _, v := range r.Verdicts {
		s.Events = append(s.Events, &tracepb.Span_Event{TimeUnixNano: s.EndTimeUnixNano, Name: "unschedulable", Attributes: append([]*commonpb.KeyValue{
			text("kubelith.plugin", v.Plugin), text("kubelith.reason", v.Reason), number("kubelith.count", int64(v.Count)),
		}, list("kubelith.nodes", v.Nodes)...)})
	}
	return s
}

// kinds are the resources for which OpenTelemetry has names.
//
// Source: https://opentelemetry.io/docs/specs/semconv/registry/attributes/k8s/.
func kinds() map[string]string {
	return map[string]string{
		"pods": "pod", "nodes": "node", "namespaces": "namespace", "services": "service", "deployments.apps": "deployment", "replicasets.apps": "replicaset",
		"statefulsets.apps": "statefulset", "daemonsets.apps": "daemonset", "jobs.batch": "job", "cronjobs.batch": "cronjob",
		"horizontalpodautoscalers.autoscaling": "hpa", "replicationcontrollers": "replicationcontroller", "resourcequotas": "resourcequota",
		"persistentvolumeclaims": "persistentvolumeclaim", "persistentvolumes": "persistentvolume", "storageclasses.storage.k8s.io": "storageclass",
	}
}

// attributes returns what is known of a record's object and of itself, by OpenTelemetry's names where it has any.
func attributes(r *record.Record) []*commonpb.KeyValue {
	all := []*commonpb.KeyValue{text("kubelith.stage", string(r.Stage)), text("kubelith.resource", r.Object.Resource)}
	add := func(key, value string) {
		if value != "" {
			all = append(all, text(key, value))
		}
	}
	if kind := kinds()[r.Object.Resource]; kind != "" {
		add("k8s."+kind+".name", r.Object.Name)
		add("k8s."+kind+".uid", r.Object.UID)
	} else {
		add("kubelith.name", r.Object.Name)
		add("kubelith.uid", r.Object.UID)
	}
	add("k8s.namespace.name", r.Object.Namespace)
	switch r.Stage {
	case record.Create, record.Start, record.Stop, record.Run, record.Probe:
		add("k8s.container.name", r.Name)
	case record.Pull:
		add("container.image.name", r.Name)
	case record.Request:
		add("user.name", r.Actor)
		add("user_agent.original", r.Agent)
	case record.Schedule, record.Bind:
		add("k8s.node.name", r.Name)
	}
	if r.Stage != record.Request {
		add("kubelith.actor", r.Actor)
	}
	add("kubelith.message", r.Message)
	switch {
	case r.Code != 0 && r.Stage == record.Request:
		all = append(all, number("http.response.status_code", int64(r.Code)))
	case r.Code != 0:
		all = append(all, number("process.exit.code", int64(r.Code)))
	}
	if r.Bytes != 0 {
		all = append(all, number("kubelith.bytes", r.Bytes))
	}
	if r.Peak != 0 {
		all = append(all, number("kubelith.memory.peak", r.Peak))
	}
	if r.Count > 1 {
		all = append(all, number("kubelith.count", int64(r.Count)))
	}
	return all
}

// batch collects spans by node.
type batch struct {
	resources []*tracepb.ResourceSpans
	nodes     []string
}

func (b *batch) add(node string, spans ...*tracepb.Span) {
	i := slices.Index(b.nodes, node)
	if i < 0 {
		i = len(b.nodes)
		b.nodes = append(b.nodes, node)
		from := []*commonpb.KeyValue{text("service.name", "kubelith")}
		if node != "" {
			from = append(from, text("k8s.node.name", node))
		}
		b.resources = append(b.resources, &tracepb.ResourceSpans{
			Resource: &resourcepb.Resource{Attributes: from}, ScopeSpans: []*tracepb.ScopeSpans{{Scope: &commonpb.InstrumentationScope{Name: scope}}},
		})
	}
	to := b.resources[i].ScopeSpans[0]
	to.Spans = append(to.Spans, spans...)
}

func text(key, value string) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_StringValue{StringValue: strings.ToValidUTF8(value, "?")}}}
}

func number(key string, value int64) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_IntValue{IntValue: value}}}
}

func boolean(key string, value bool) *commonpb.KeyValue {
	return &commonpb.KeyValue{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_BoolValue{BoolValue: value}}}
}

// list returns an attribute with several values; none for none.
func list(key string, values []string) []*commonpb.KeyValue {
	if len(values) == 0 {
		return nil
	}
	array := &commonpb.ArrayValue{}
	for _, v := range values {
		array.Values = append(array.Values, text("", v).Value)
	}
	return []*commonpb.KeyValue{{Key: key, Value: &commonpb.AnyValue{Value: &commonpb.AnyValue_ArrayValue{ArrayValue: array}}}}
}

// Root returns the UID of the topmost owner of an object that get knows, itself if it has none.
func Root(o record.Object, get func(uid string) (record.Object, bool)) string {
	root := o.UID
	for range 10 { // owners form no cycle, unless a user creates one
		if len(o.Owners) == 0 {
			break
		}
		root = o.Owners[0]
		above, ok := get(root)
		if !ok {
			break
		}
		o = above
	}
	return root
}
