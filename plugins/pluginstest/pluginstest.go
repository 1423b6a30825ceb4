// Package pluginstest has fakes of package plugins for the tests of callers. For tests of plugins see
// plugins/sdk/sdktest.
package pluginstest

import (
	"context"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

var (
	_ plugins.Set    = (*Set)(nil)
	_ plugins.Plugin = (*Plugin)(nil)
)

// Set is a plugins.Set that the test changes. The zero value is empty.
type Set struct {
	mu          sync.Mutex
	all         []plugins.Plugin
	subscribers []*func()
}

// NewSet returns a Set of these plugins.
func NewSet(all ...plugins.Plugin) *Set { return &Set{all: all} }

// Plugins implements plugins.Set.
func (s *Set) Plugins(kind plugins.Kind) []plugins.Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.all), func(p plugins.Plugin) bool { return p.Kind() != kind })
}

// Subscribe implements plugins.Set.
func (s *Set) Subscribe(_ plugins.Kind, changed func()) (cancel func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, &changed)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.subscribers = slices.DeleteFunc(s.subscribers, func(f *func()) bool { return f == &changed })
	}
}

// Subscribed reports whether there are subscribers.
func (s *Set) Subscribed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.subscribers) > 0
}

// Replace replaces the plugins and notifies the subscribers.
func (s *Set) Replace(all ...plugins.Plugin) {
	s.mu.Lock()
	s.all = all
	subscribers := slices.Clone(s.subscribers)
	s.mu.Unlock()
	for _, changed := range subscribers {
		(*changed)()
	}
}

// Plugin is a plugins.Plugin whose process is a gRPC server in memory, or missing.
type Plugin struct {
	name string
	kind plugins.Kind

	mu          sync.Mutex
	settings    plugins.Settings
	description *pluginv1.Description
	conn        *grpc.ClientConn // nil: it is not running
	generation  uint64
	next        reconcile.Broadcast // a process serves
	called      []string
	last        error
}

// New returns a plugin that has never run.
func New(kind plugins.Kind, name string, settings plugins.Settings) *Plugin {
	return &Plugin{name: name, kind: kind, settings: settings}
}

// Name implements plugins.Plugin.
func (p *Plugin) Name() string { return p.name }

// Kind implements plugins.Plugin.
func (p *Plugin) Kind() plugins.Kind { return p.kind }

// Settings implements plugins.Plugin.
func (p *Plugin) Settings() plugins.Settings {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.settings
}

// SetSettings changes the settings, as an operator does.
func (p *Plugin) SetSettings(settings plugins.Settings) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settings = settings
}

// Description implements plugins.Plugin.
func (p *Plugin) Description() *pluginv1.Description {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.description
}

// Generation implements plugins.Plugin.
func (p *Plugin) Generation() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		return 0
	}
	return p.generation
}

// Next implements plugins.Plugin.
func (p *Plugin) Next() <-chan struct{} { return p.next.Next() }

// SetDescription sets the description, as a process does.
func (p *Plugin) SetDescription(d *pluginv1.Description) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.description = d
}

// Serve replaces the process by one that serves what register adds; the one before finishes its calls. It runs until
// Kill or the test's end.
func (p *Plugin) Serve(t testing.TB, register func(*grpc.Server), options ...grpc.ServerOption) {
	t.Helper()
	conn := sdktest.Connect(t, register, options...)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.conn, p.generation = conn, p.generation+1
	p.next.Send()
}

// Introduce requests the description of the process, as the host does.
func (p *Plugin) Introduce(t testing.TB) {
	t.Helper()
	err := p.Call(t.Context(), "Describe", func(_ context.Context, i plugins.Instance) error {
		d, err := sdktest.Describe(t, i.Conn, p.name, "")
		p.SetDescription(d)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Kill ends the process and its calls.
func (p *Plugin) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		p.conn.Close()
	}
	p.conn = nil
}

// Call implements plugins.Plugin.
func (p *Plugin) Call(ctx context.Context, method string, f func(context.Context, plugins.Instance) error) error {
	p.mu.Lock()
	conn, generation, timeout := p.conn, p.generation, p.settings.Timeout
	p.called = append(p.called, method)
	p.mu.Unlock()
	if conn == nil {
		return &plugins.NotRunningError{Plugin: p.name, Reason: "ended with status 2"}
	}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	err := f(ctx, plugins.Instance{Conn: conn, Generation: generation})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.last = err
	return err
}

// Called returns the methods of all calls, answered or not.
func (p *Plugin) Called() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.called)
}

// LastError returns the error of the last call.
func (p *Plugin) LastError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.last
}
