package spans

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"

	"kubelith.io/kubelith/trace/record"
)

// The kubelet's spans, and the attribute with the reason of a sync.
//
// Source: k8s.io/kubernetes/pkg/kubelet/kubelet.go (SyncPod, SyncTerminatingPod, SyncTerminatedPod).
const (
	syncPod            = "syncPod"
	syncTerminatingPod = "syncTerminatingPod"
	syncTerminatedPod  = "syncTerminatedPod"

	podUID       = "k8s.pod.uid"
	podName      = "k8s.pod.name"
	podNamespace = "k8s.namespace.name"
	updateType   = "k8s.pod.update_type"
	// resync is the updateType of a sync that nothing set off: the kubelet visits each pod once a minute or so.
	resync = "sync"
	// firstSync is that of a pod that the kubelet did not know.
	firstSync = "create"

	terminating = "terminating" // the name of such a record
)

// Provider returns the kubelet's TracerProvider. next is the one that it would have otherwise: its spans go there too.
func (s *Source) Provider(next trace.TracerProvider) trace.TracerProvider {
	return &provider{source: s, next: next}
}

type provider struct {
	embedded.TracerProvider
	source *Source
	next   trace.TracerProvider
}

// Tracer implements trace.TracerProvider.
func (p *provider) Tracer(name string, opts ...trace.TracerOption) trace.Tracer {
	return &tracer{source: p.source, next: p.next.Tracer(name, opts...)}
}

type tracer struct {
	embedded.Tracer
	source *Source
	next   trace.Tracer
}

// Start implements trace.Tracer.
func (t *tracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	start := time.Now()
	ctx, next := t.next.Start(ctx, name, opts...)
	r := record.Record{Object: record.Ref{Resource: pods}, Actor: "kubelet"}
	switch name {
	case syncPod:
		r.Stage = record.Sync
	case syncTerminatingPod:
		r.Stage, r.Name = record.Terminate, terminating
	case syncTerminatedPod:
		r.Stage, r.Name = record.Terminate, "terminated"
	default:
		return ctx, next
	}
	cfg := trace.NewSpanStartConfig(opts...)
	for _, a := range cfg.Attributes() {
		switch a.Key {
		case podUID:
			r.Object.UID = a.Value.AsString()
		case podName:
			r.Object.Name = a.Value.AsString()
		case podNamespace:
			r.Object.Namespace = a.Value.AsString()
		case updateType:
			r.Name = a.Value.AsString()
		}
	}
	s := &syncSpan{Span: next, source: t.source, context: next.SpanContext(), start: start, record: r}
	if !s.context.IsValid() {
		s.context = newContext()
	}
	t.source.mu.Lock()
	t.source.syncs[s.context.TraceID()] = s
	t.source.mu.Unlock()
	if r.Name == firstSync || r.Name == terminating {
		// Its end is too late to know that the kubelet has begun.
		r.Name, r.Start = record.Began, t.source.clock.At(start)
		t.source.sink.Add(r)
	}
	return trace.ContextWithSpan(ctx, s), s
}

// syncSpan is the kubelet's work on a pod.
type syncSpan struct {
	trace.Span // the next provider's
	source     *Source
	context    trace.SpanContext
	start      time.Time
	record     record.Record // its Error is set by the goroutine that ends the span
	calls      atomic.Int32
}

// SpanContext implements trace.Span.
func (s *syncSpan) SpanContext() trace.SpanContext { return s.context }

// IsRecording implements trace.Span.
func (s *syncSpan) IsRecording() bool { return true }

// SetStatus implements trace.Span.
func (s *syncSpan) SetStatus(code codes.Code, text string) {
	if code == codes.Error {
		s.record.Error = text
	}
	s.Span.SetStatus(code, text)
}

// End implements trace.Span.
func (s *syncSpan) End(opts ...trace.SpanEndOption) {
	s.source.mu.Lock()
	if id := s.context.TraceID(); s.source.syncs[id] == s {
		delete(s.source.syncs, id)
	}
	s.source.mu.Unlock()
	r := &s.record
	// The kubelet visits a pod that runs again and again, and finds nothing to do.
	if r.Name != resync || r.Error != "" || s.calls.Load() > 0 {
		r.Start, r.Duration = s.source.clock.At(s.start), time.Since(s.start)
		s.source.sink.Add(*r)
	}
	s.Span.End(opts...)
}

// newContext returns the context of a new trace. It is not sampled: that is for others to whom it may be sent.
func newContext() trace.SpanContext {
	var t trace.TraceID
	var s trace.SpanID
	binary.NativeEndian.PutUint64(t[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(t[8:], rand.Uint64()|1) // zero is no ID
	binary.NativeEndian.PutUint64(s[:], rand.Uint64()|1)
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: t, SpanID: s})
}
