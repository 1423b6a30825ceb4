package spans

import (
	"context"
	"strconv"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"go.opentelemetry.io/otel/trace/noop"

	"kubelith.io/kubelith/trace/record"
)

// What containerd sets on the span in the context of a call. It starts its own spans with the provider of that one.
//
// Source: github.com/containerd/containerd/v2/internal/cri/server (sandbox_run.go, sandbox_stop.go,
// images/image_pull.go), pkg/tracing and core/unpack.
const (
	setupNetwork    = "cni.setup_pod_network"
	sandboxIP       = "sandbox.ip"
	teardownStarts  = "start pod network teardown"
	teardownEnds    = "finished pod network teardown"
	imageSize       = "image.size.bytes"
	fetchLayer      = "pkg.unpack.unpacker.fetchLayer"
	unpackLayer     = "pkg.unpack.unpacker.unpackLayer"
	maxLayers       = 64 // whose steps are kept
	layerDigest     = "layer.media.digest"
	stepFetchLayer  = "fetch"
	stepUnpackLayer = "unpack"
)

// callSpan is the span of a call to the CRI, in which containerd works.
type callSpan struct {
	noop.Span
	tracing callTracing
	context trace.SpanContext

	mu       sync.Mutex
	bytes    int64
	teardown time.Time
	steps    []record.Step
}

// SpanContext implements trace.Span.
func (s *callSpan) SpanContext() trace.SpanContext { return s.context }

// IsRecording implements trace.Span.
func (s *callSpan) IsRecording() bool { return true }

// TracerProvider implements trace.Span.
func (s *callSpan) TracerProvider() trace.TracerProvider { return s.tracing }

// SetAttributes implements trace.Span.
func (s *callSpan) SetAttributes(attributes ...attribute.KeyValue) {
	for _, a := range attributes {
		if a.Key == imageSize {
			s.mu.Lock()
			s.bytes = number(a.Value)
			s.mu.Unlock()
		}
	}
}

// number returns the value of an attribute that is a number: containerd's are of several types.
func number(v attribute.Value) int64 {
	if v.Type() == attribute.INT64 {
		return v.AsInt64()
	}
	n, _ := strconv.ParseInt(v.AsString(), 10, 64) // 0 of another text
	return n
}

// AddEvent implements trace.Span.
func (s *callSpan) AddEvent(name string, _ ...trace.EventOption) {
	switch name {
	case teardownStarts:
		s.mu.Lock()
		s.teardown = time.Now()
		s.mu.Unlock()
	case teardownEnds:
		s.networkRemoved("")
	}
}

// networkRemoved records the CNI DEL of a sandbox that is being stopped, once it has ended.
func (s *callSpan) networkRemoved(failure string) {
	s.mu.Lock()
	start := s.teardown
	s.teardown = time.Time{}
	s.mu.Unlock()
	c := s.tracing.call
	if start.IsZero() || c.record.Object.UID == "" || c.source.stopped(c.sandbox) {
		return
	}
	c.source.sink.Add(record.Record{Object: c.record.Object, Stage: record.CNI, Name: "DEL", Actor: c.record.Actor, Error: failure,
		Start: c.source.clock.At(start), Duration: time.Since(start)})
}

// complete adds to the record of the call what containerd set.
func (s *callSpan) complete(r *record.Record) {
	s.networkRemoved(r.Error) // it has begun and not ended: this is why
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Bytes, r.Steps = s.bytes, s.steps
}

// step adds a step of the call.
func (s *callSpan) step(name, detail, failure string, start time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.steps) < maxLayers {
		s.steps = append(s.steps, record.Step{Name: name, Detail: detail, Offset: start.Sub(s.tracing.call.start), Duration: time.Since(start), Error: failure})
	}
}

// callTracing is the provider of the spans that containerd starts in a call.
type callTracing struct {
	embedded.TracerProvider
	call *call
}

// Tracer implements trace.TracerProvider.
func (t callTracing) Tracer(string, ...trace.TracerOption) trace.Tracer {
	return partTracer{call: t.call}
}

type partTracer struct {
	embedded.Tracer
	call *call
}

// Start implements trace.Tracer.
func (t partTracer) Start(ctx context.Context, name string, opts ...trace.SpanStartOption) (context.Context, trace.Span) {
	p := &part{call: t.call, name: name}
	switch name {
	case setupNetwork, fetchLayer, unpackLayer:
		p.start = time.Now()
		cfg := trace.NewSpanStartConfig(opts...)
		p.SetAttributes(cfg.Attributes()...)
	}
	return trace.ContextWithSpan(ctx, p), p
}

// part is a span of containerd in a call. Most are only there for those that they contain.
type part struct {
	noop.Span
	call  *call
	name  string
	start time.Time // zero: it is not recorded

	mu      sync.Mutex
	detail  string // the address, the layer
	failure string
}

// SpanContext implements trace.Span.
func (p *part) SpanContext() trace.SpanContext { return p.call.span.context }

// TracerProvider implements trace.Span.
func (p *part) TracerProvider() trace.TracerProvider { return callTracing{call: p.call} }

// IsRecording implements trace.Span.
func (p *part) IsRecording() bool { return !p.start.IsZero() }

// SetAttributes implements trace.Span.
func (p *part) SetAttributes(attributes ...attribute.KeyValue) {
	for _, a := range attributes {
		switch a.Key {
		case sandboxIP, layerDigest:
			p.mu.Lock()
			p.detail = a.Value.AsString()
			p.mu.Unlock()
		case imageSize: // it may be set on an inner span
			p.call.span.SetAttributes(a)
		}
	}
}

// RecordError implements trace.Span.
func (p *part) RecordError(err error, _ ...trace.EventOption) {
	if err != nil {
		p.SetStatus(codes.Error, err.Error())
	}
}

// SetStatus implements trace.Span.
func (p *part) SetStatus(code codes.Code, text string) {
	if code == codes.Error {
		p.mu.Lock()
		p.failure = text
		p.mu.Unlock()
	}
}

// End implements trace.Span.
func (p *part) End(...trace.SpanEndOption) {
	if p.start.IsZero() {
		return
	}
	p.mu.Lock()
	detail, failure := p.detail, p.failure
	p.mu.Unlock()
	switch c := p.call; p.name {
	case setupNetwork:
		if c.record.Object.UID != "" {
			c.source.sink.Add(record.Record{Object: c.record.Object, Stage: record.CNI, Name: "ADD", Actor: c.record.Actor, Message: detail, Error: failure,
				Start: c.source.clock.At(p.start), Duration: time.Since(p.start)})
		}
	case fetchLayer:
		c.span.step(stepFetchLayer, detail, failure, p.start)
	case unpackLayer:
		c.span.step(stepUnpackLayer, detail, failure, p.start)
	}
}
