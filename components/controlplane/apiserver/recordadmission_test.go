package apiserver

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/component-base/tracing"

	"kubelith.io/kubelith/trace/record"
)

// TestUsersTraces: with --tracing-config-file, the spans of webhooks' calls go where they would go without the
// recorder.
func TestUsersTraces(t *testing.T) {
	exported := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exported))
	ctx, parent := provider.Tracer("test").Start(t.Context(), "request")
	p := &pending{flight: newFlight(record.NewStore(record.Options{})), began: time.Now()}
	watched, calls := watchCalls(ctx, p)
	inner, call := tracing.Start(watched, "Call validating webhook", attribute.String("configuration", "c"), attribute.String("webhook", "w"))
	_, nested := tracing.Start(inner, "dial")
	nested.End(time.Hour)
	call.End(time.Hour)
	p.admitted("plugin", time.Now(), time.Microsecond, errors.New(`admission webhook "w" denied the request`), calls)
	parent.End()

	spans := map[string]tracetest.SpanStub{}
	for _, s := range exported.GetSpans() {
		spans[s.Name] = s
	}
	if len(spans) != 3 || spans["Call validating webhook"].Parent.SpanID() != parent.SpanContext().SpanID() || spans["dial"].Parent.SpanID() != spans["Call validating webhook"].SpanContext.SpanID() {
		t.Errorf("spans %+v", spans)
	}
	if len(p.steps) != 1 || p.steps[0].Name != "webhook" || p.steps[0].Detail != "c/w" || p.steps[0].Error == "" {
		t.Errorf("steps %+v", p.steps)
	}
}

// TestNoTraces: without traces, none begin with the recorder: a webhook gets no header of one.
func TestNoTraces(t *testing.T) {
	p := &pending{flight: newFlight(record.NewStore(record.Options{})), began: time.Now()}
	ctx, calls := watchCalls(context.Background(), p)
	ctx, call := tracing.Start(ctx, "Call mutating webhook", attribute.String("configuration", "sidecar.plugin.kubelith.io"), attribute.String("webhook", "add.sidecar.plugin.kubelith.io"))
	if trace.SpanContextFromContext(ctx).IsValid() {
		t.Error("a trace has begun")
	}
	call.End(time.Hour)
	p.admitted("plugin", time.Now(), time.Microsecond, nil, calls)
	if len(p.steps) != 1 || p.steps[0].Name != "plugin" || p.steps[0].Detail != "sidecar/add" || p.steps[0].Error != "" {
		t.Errorf("steps %+v", p.steps)
	}
}
