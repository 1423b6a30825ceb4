package admission

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/sdk"
	"kubelith.io/kubelith/plugins/sdk/sdktest"
)

// fakePlugin is a plugin without a host: the SDK's over gRPC in memory, or none.
type fakePlugin struct {
	name        string
	settings    plugins.Settings
	description *pluginv1.Description
	conn        grpc.ClientConnInterface // nil: it is not running
	calls       atomic.Int32
	last        atomic.Value // *error of the last call
}

func (p *fakePlugin) Name() string                       { return p.name }
func (p *fakePlugin) Kind() plugins.Kind                 { return plugins.Admission }
func (p *fakePlugin) Settings() plugins.Settings         { return p.settings }
func (p *fakePlugin) Description() *pluginv1.Description { return p.description }
func (p *fakePlugin) Generation() uint64                 { return 1 }

func (p *fakePlugin) Call(ctx context.Context, _ string, f func(context.Context, plugins.Instance) error) error {
	if p.conn == nil {
		return &plugins.NotRunningError{Plugin: p.name, Reason: "ended with status 2"}
	}
	if p.settings.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, p.settings.Timeout)
		defer cancel()
	}
	p.calls.Add(1)
	err := f(ctx, plugins.Instance{Conn: p.conn, Generation: 1})
	p.last.Store(&err)
	return err
}

// lastError is what the last call came to, as a host counts it.
func (p *fakePlugin) lastError() error { return *p.last.Load().(*error) }

// fakeSet is a set of plugins that the test changes.
type fakeSet struct {
	mu      sync.Mutex
	list    []plugins.Plugin
	changed func()
}

func (s *fakeSet) Plugins(plugins.Kind) []plugins.Plugin {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list
}

func (s *fakeSet) Subscribe(_ plugins.Kind, changed func()) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changed = changed
	return func() {}
}

// set replaces the plugins and tells the subscriber, if there is one yet.
func (s *fakeSet) set(list ...plugins.Plugin) {
	s.mu.Lock()
	s.list = list
	changed := s.changed
	s.mu.Unlock()
	if changed != nil {
		changed()
	}
}

// serve runs a plugin of the SDK in memory.
func serve(t testing.TB, name string, a sdk.Admission, settings plugins.Settings) *fakePlugin {
	t.Helper()
	conn := sdktest.Connect(t, a.Register)
	d, err := sdktest.Describe(t, conn, name, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := Validate(name, d); err != nil {
		t.Fatal(err)
	}
	return &fakePlugin{name: name, settings: settings, description: d, conn: conn}
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !condition(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
	}
}
