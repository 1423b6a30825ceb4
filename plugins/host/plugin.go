package host

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// plugin is one of the set. Its supervisor starts and ends its processes; callers see the one that serves.
type plugin struct {
	host *Host
	name string
	kind plugins.Kind

	spec        atomic.Pointer[Spec]                 // as it is wanted now
	description atomic.Pointer[pluginv1.Description] // the last that was valid
	current     atomic.Pointer[instance]             // that serves; nil: none

	wake    chan struct{} // has room for one: spec, file or restart are to be looked at
	suspect chan struct{} // has room for one: a call had no answer in time
	gone    chan struct{} // closed when it is no longer wanted
	settled chan struct{} // closed when the first start has succeeded or failed
	ended   chan struct{} // closed when its supervisor has ended

	mu      sync.Mutex
	state   State // its phase, message, since, starts and cgroup; the rest is filled in by State
	restart bool  // asked for
}

var _ plugins.Plugin = (*plugin)(nil)

func newPlugin(h *Host, spec *Spec) *plugin {
	p := &plugin{host: h, name: spec.Name, kind: spec.Kind,
		wake: make(chan struct{}, 1), suspect: make(chan struct{}, 1),
		gone: make(chan struct{}), settled: make(chan struct{}), ended: make(chan struct{}),
		state: State{Phase: string(Starting), Since: time.Now()}}
	p.spec.Store(spec)
	p.description.Store(h.descriptions.load(spec))
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
		return i.generation
	}
	return 0
}

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
		signal(p.suspect)
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
	case <-i.dead():
		return p.notRunning()
	case <-ctx.Done():
		return ctx.Err()
	}
	return f(ctx, plugins.Instance{Conn: i.conn, Generation: i.generation})
}

// take returns the instance that serves, with this call counted; nil when there is none.
func (p *plugin) take() *instance {
	for {
		i := p.current.Load()
		if i == nil || i.begin() {
			return i
		}
		if p.current.CompareAndSwap(i, nil) { // it ends, and nobody has taken its place
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

// signal wakes a receiver that looks at everything when it wakes.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// note is a line about a plugin: for its operator, and for everybody.
type note struct{ message, public string }

// say is a line that everybody may read.
func say(format string, args ...any) note {
	text := printable(fmt.Sprintf(format, args...))
	return note{text, text}
}

// because is a line with an error in the place of its %s.
func because(format string, err error) note {
	return note{printable(fmt.Sprintf(format, err)), printable(fmt.Sprintf(format, withoutWords(err)))}
}

// set changes the phase and what is said of it.
func (p *plugin) set(phase Phase, n note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Phase != string(phase) {
		p.state.Since = time.Now()
	}
	p.state.Phase, p.state.Message, p.state.Public = string(phase), n.message, n.public
}

// State tells where the plugin stands.
func (p *plugin) State() State {
	p.mu.Lock()
	s := p.state
	p.mu.Unlock()
	spec := p.spec.Load()
	s.Name, s.Kind, s.Path, s.Source = p.name, p.kind, spec.Path, spec.Source
	s.Description = p.description.Load()
	s.Version = printable(s.Description.GetVersion())
	if i := p.current.Load(); i != nil {
		s.SHA256, s.PID, s.Generation, s.InFlight = i.sha256, i.launcher.started().pid, i.generation, i.inFlight()
		if i.launcher.group != nil {
			s.Cgroup = i.launcher.group.Dir()
		}
	}
	return s
}
