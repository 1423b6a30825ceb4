package apiserver

import (
	"context"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/embedded"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstreamadmission "k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/validating"

	"kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/trace/record"
)

// admit is an admission.Decorator: it measures every admission plugin.
func (r *flight) admit(handler upstreamadmission.Interface, name string) upstreamadmission.Interface {
	m := &measured{Interface: handler, admits: name + " (mutating)", validates: name + " (validating)"}
	m.calls = name == mutating.PluginName || name == validating.PluginName
	m.mutating, _ = handler.(upstreamadmission.MutationInterface)
	m.validating, _ = handler.(upstreamadmission.ValidationInterface)
	return m
}

// measured is an admission plugin.
type measured struct {
	upstreamadmission.Interface
	admits, validates string // the details of its steps
	calls             bool   // webhooks and plugin processes
	mutating          upstreamadmission.MutationInterface
	validating        upstreamadmission.ValidationInterface
}

// Admit implements admission.MutationInterface.
func (m *measured) Admit(ctx context.Context, a upstreamadmission.Attributes, o upstreamadmission.ObjectInterfaces) error {
	if m.mutating == nil {
		return nil
	}
	return m.measure(ctx, a, m.admits, func(ctx context.Context) error { return m.mutating.Admit(ctx, a, o) })
}

// Validate implements admission.ValidationInterface.
func (m *measured) Validate(ctx context.Context, a upstreamadmission.Attributes, o upstreamadmission.ObjectInterfaces) error {
	if m.validating == nil {
		return nil
	}
	return m.measure(ctx, a, m.validates, func(ctx context.Context) error { return m.validating.Validate(ctx, a, o) })
}

// measure calls the plugin and, in a request that is recorded, adds its step.
func (m *measured) measure(ctx context.Context, a upstreamadmission.Attributes, detail string, call func(context.Context) error) error {
	p := pendingFrom(ctx)
	if p == nil {
		return call(ctx)
	}
	ctx, calls := m.begin(ctx, p, a)
	began := time.Now()
	err := call(ctx)
	p.admitted(detail, began, time.Since(began), err, calls)
	return err
}

func (m *measured) begin(ctx context.Context, p *pending, a upstreamadmission.Attributes) (context.Context, *calls) {
	p.asked(a)
	if m.calls {
		return watchCalls(ctx, p)
	}
	return ctx, nil
}

// asked notes the object of the request: if it is refused, storage does not see it.
func (p *pending) asked(a upstreamadmission.Attributes) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.decoded()
	if p.tried || p.done {
		return
	}
	if a.IsDryRun() { // also one that is refused happened to no object
		p.skip = true
		return
	}
	p.tried = true
	resource := a.GetResource()
	p.object.Ref = record.Ref{
		Resource:  schema.GroupResource{Group: resource.Group, Resource: resource.Resource}.String(),
		Namespace: a.GetNamespace(), Name: a.GetName(),
	}
	if before := a.GetOldObject(); before != nil {
		if o, err := meta.Accessor(before); err == nil && a.GetSubresource() != "scale" {
			p.object.UID = string(o.GetUID())
		}
		return
	}
	if object := a.GetObject(); object != nil && a.GetSubresource() == "" {
		if o, err := meta.Accessor(object); err == nil {
			p.object.Owners = owners(o)
			if p.object.Name == "" {
				p.object.Name = o.GetName()
			}
			if p.object.Name == "" {
				p.object.Name = o.GetGenerateName()
			}
		}
	}
}

// admitted adds the steps of an admission plugin.
func (p *pending) admitted(detail string, began time.Time, took time.Duration, err error, c *calls) {
	p.mu.Lock()
	defer p.mu.Unlock()
	refused := ""
	if err != nil {
		refused = err.Error()
	}
	called := false
	if c != nil {
		c.mu.Lock()
		called = len(c.steps) > 0
		for _, s := range c.steps {
			took -= s.Duration
			if refused != "" && strings.Contains(refused, `"`+s.hook+`"`) {
				s.Error, refused = refused, ""
			}
			if !p.done {
				p.steps = append(p.steps, s.Step)
			}
		}
		c.mu.Unlock()
		took = max(took, 0) // validating webhooks are called at the same time
		if refused == "" && err != nil {
			return
		}
	}
	// The calls of webhooks are separate steps; the rest of the time is none.
	if refused == "" && (took < minAdmission || called) {
		p.small += took
		return
	}
	p.addStep("admission", detail, began, took, refused)
}

// calls are those of webhooks and plugin processes. Upstream begins a span for each, with the provider of the span in
// the context; so our span replaces that one, and passes everything on to it.
type calls struct {
	embedded.TracerProvider
	inner trace.TracerProvider
	p     *pending

	mu    sync.Mutex
	steps []callStep
}

type callStep struct {
	record.Step
	hook string
}

func watchCalls(ctx context.Context, p *pending) (context.Context, *calls) {
	span := trace.SpanFromContext(ctx)
	c := &calls{inner: span.TracerProvider(), p: p}
	return trace.ContextWithSpan(ctx, &watchedSpan{span, c}), c
}

// watchedSpan is a span whose children are watched.
type watchedSpan struct {
	trace.Span
	calls *calls
}

// TracerProvider implements trace.Span.
func (s *watchedSpan) TracerProvider() trace.TracerProvider { return s.calls }

// Tracer implements trace.TracerProvider.
func (c *calls) Tracer(name string, options ...trace.TracerOption) trace.Tracer {
	return &callTracer{inner: c.inner.Tracer(name, options...), calls: c}
}

type callTracer struct {
	embedded.Tracer
	inner trace.Tracer
	calls *calls
}

// Start implements trace.Tracer.
func (t *callTracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	ctx, span := t.inner.Start(ctx, name, options...)
	var watched trace.Span = &watchedSpan{span, t.calls}
	if name == "Call mutating webhook" || name == "Call validating webhook" {
		call := &callSpan{watchedSpan: watchedSpan{span, t.calls}, began: time.Now()}
		config := trace.NewSpanStartConfig(options...)
		for _, a := range config.Attributes() {
			switch a.Key {
			case "configuration":
				call.configuration = a.Value.AsString()
			case "webhook":
				call.hook = a.Value.AsString()
			}
		}
		watched = call
	}
	return trace.ContextWithSpan(ctx, watched), watched
}

// callSpan is the call of a webhook or a plugin.
type callSpan struct {
	watchedSpan
	began               time.Time
	configuration, hook string
}

// End implements trace.Span.
func (s *callSpan) End(options ...trace.SpanEndOption) {
	s.Span.End(options...)
	step := callStep{hook: s.hook, Step: record.Step{
		Name: "webhook", Detail: s.configuration + "/" + s.hook, Offset: s.began.Sub(s.calls.p.began), Duration: time.Since(s.began),
	}}
	if plugin, hook, ok := admission.Hook(s.configuration, s.hook); ok {
		step.Name, step.Detail = "plugin", plugin+"/"+hook
	}
	s.calls.mu.Lock()
	defer s.calls.mu.Unlock()
	s.calls.steps = append(s.calls.steps, step)
}
