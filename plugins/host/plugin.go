package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// plugin is one of the set. Its supervisor starts and stops its processes; callers get the one that serves.
type plugin struct {
	host *Host
	name string
	kind plugins.Kind

	spec        atomic.Pointer[Spec]                 // the latest
	description atomic.Pointer[pluginv1.Description] // the last valid one
	current     atomic.Pointer[instance]             // the one that serves; nil: none

	wake    reconcile.Signal // spec, file or restart may have changed
	suspect reconcile.Signal // a call had no answer in time
	gone    chan struct{}    // closed when the plugin is no longer wanted
	settled chan struct{}    // closed when the first start has succeeded or failed
	ended   chan struct{}    // closed when its supervisor has ended

	next reconcile.Broadcast // when a process begins to serve

	mu      sync.Mutex
	state   State // phase, messages, since and starts; State fills in the rest
	restart bool  // requested
}

var _ plugins.Plugin = (*plugin)(nil)

func newPlugin(h *Host, spec *Spec) *plugin {
	p := &plugin{host: h, name: spec.Name, kind: spec.Kind,
		wake: reconcile.NewSignal(), suspect: reconcile.NewSignal(),
		gone: make(chan struct{}), settled: make(chan struct{}), ended: make(chan struct{}),
		state: State{Phase: string(Starting), Since: time.Now()}}
	p.spec.Store(spec)
	p.description.Store(h.descriptions.load(&spec.Spec))
	return p
}

// Name implements plugins.Plugin.
func (p *plugin) Name() string { return p.name }

// Kind implements plugins.Plugin.
func (p *plugin) Kind() plugins.Kind { return p.kind }

// Settings implements plugins.Plugin.
func (p *plugin) Settings() plugins.Settings { return p.spec.Load().Settings }

// Description implements plugins.Plugin.
func (p *plugin) Description() *pluginv1.Description { return p.description.Load() }

// Generation implements plugins.Plugin.
func (p *plugin) Generation() uint64 {
	if i := p.current.Load(); i != nil {
		return i.Generation()
	}
	return 0
}

// Next implements plugins.Plugin.
func (p *plugin) Next() <-chan struct{} { return p.next.Next() }

// Call implements plugins.Plugin.
func (p *plugin) Call(ctx context.Context, method string, f func(context.Context, plugins.Instance) error) error {
	if timeout := p.Settings().Timeout; timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	started := time.Now()
	err := p.call(ctx, f)
	code := codeOf(err)
	if code == codes.DeadlineExceeded {
		p.suspect.Send()
	}
	if observe := p.host.opts.Observe; observe != nil {
		observe.Called(p.name, p.kind, method, code, time.Since(started))
	}
	return err
}

func (p *plugin) call(ctx context.Context, f func(context.Context, plugins.Instance) error) error {
	i := p.take()
	if i == nil {
		return p.notRunning()
	}
	defer i.finish()
	if i.unhealthy.Load() {
		return p.notRunning()
	}
	select {
	case i.slots <- struct{}{}:
		defer func() { <-i.slots }()
	case <-i.Done():
		return p.notRunning()
	case <-ctx.Done():
		return ctx.Err()
	}
	err := f(ctx, plugins.Instance{Conn: i.Conn(), Generation: i.Generation()})
	if i.Conn().GetState() == connectivity.Shutdown && ctx.Err() == nil && codeOf(err) == codes.Canceled {
		// gRPC answers Canceled on a closed connection, as it is when its process has ended. The caller cancelled
		// nothing.
		return status.Error(codes.Unavailable, "the process of the plugin ended during the call")
	}
	return err
}

// take returns the instance that serves and counts a call on it; nil if there is none.
func (p *plugin) take() *instance {
	for {
		i := p.current.Load()
		if i == nil || i.begin() {
			return i
		}
		if p.current.CompareAndSwap(i, nil) { // it is ending, and no other serves yet
			return nil
		}
	}
}

func (p *plugin) notRunning() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	reason := p.state.Public
	if reason == "" {
		reason = "it is starting"
	}
	return &plugins.NotRunningError{Plugin: p.name, Reason: reason}
}

func codeOf(err error) codes.Code {
	var missing *plugins.NotRunningError
	switch {
	case err == nil:
		return codes.OK
	case errors.As(err, &missing):
		return codes.Unavailable
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return status.Code(err)
}

// note explains a phase: message is for the operator, public for everyone.
type note struct{ message, public string }

// publicNote returns a note that everyone may read.
func publicNote(format string, args ...any) note {
	text := oneline.Mask(fmt.Sprintf(format, args...))
	return note{text, text}
}

// errorNote returns a note with err in the place of format's %s. Its public part omits the plugin's output.
func errorNote(format string, err error) note {
	return note{oneline.Mask(fmt.Sprintf(format, err)), oneline.Mask(fmt.Sprintf(format, process.PublicError(err)))}
}

// set changes the phase and its explanation.
func (p *plugin) set(phase Phase, n note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Phase != string(phase) {
		p.state.Since = time.Now()
	}
	p.state.Phase, p.state.Message, p.state.Public = string(phase), n.message, n.public
}

// State returns the current state.
func (p *plugin) State() State {
	p.mu.Lock()
	s := p.state
	p.mu.Unlock()
	spec := p.spec.Load()
	s.Name, s.Kind, s.Path, s.Source = p.name, p.kind, spec.Path, spec.Source
	s.Description = p.description.Load()
	s.Version = oneline.Mask(s.Description.GetVersion())
	if i := p.current.Load(); i != nil {
		s.SHA256, s.PID, s.Generation, s.InFlight, s.Cgroup = i.SHA256(), i.PID(), i.Generation(), i.inFlight(), i.Cgroup()
	}
	return s
}
