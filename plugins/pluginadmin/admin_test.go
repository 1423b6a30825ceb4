package pluginadmin

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/base/unixsocket"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/pluginstest"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

func TestMain(m *testing.M) {
	// client-go's Events write to the sink until the last one is through.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// fakeHost has the plugins that a test gives it; restart is what Restart does.
type fakeHost struct {
	pluginstest.Set
	mu      sync.Mutex
	states  []host.State
	restart func(name string) error
}

func (h *fakeHost) States() []host.State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.states)
}

func (h *fakeHost) set(states ...host.State) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.states = states
}

func (h *fakeHost) Restart(name string) error { return h.restart(name) }

// fakePlugin answers Metrics.
type fakePlugin struct {
	pluginv1.UnimplementedPluginServer
	*pluginstest.Plugin
	metrics string // empty: the plugin has none
	asked   int
}

func newPlugin(t *testing.T, kind plugins.Kind, name, metrics string) *fakePlugin {
	t.Helper()
	p := &fakePlugin{Plugin: pluginstest.New(kind, name, plugins.Settings{}), metrics: metrics}
	p.Serve(t, func(s *grpc.Server) { pluginv1.RegisterPluginServer(s, p) })
	return p
}

func (p *fakePlugin) Metrics(ctx context.Context, r *pluginv1.MetricsRequest) (*pluginv1.MetricsResponse, error) {
	p.asked++
	if p.metrics == "" {
		return p.UnimplementedPluginServer.Metrics(ctx, r)
	}
	return &pluginv1.MetricsResponse{Text: []byte(p.metrics)}, nil
}

func quiet() *logrus.Logger {
	log := logrus.New()
	log.SetOutput(io.Discard)
	return log
}

// start runs the component with this host and an API that has this Node, and returns a client of the socket and the
// API.
func start(t *testing.T, h *fakeHost, o *Observer, node *corev1.Node) (*Client, *fake.Clientset) {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "plugins.sock")
	if err := os.WriteFile(socket, nil, 0o644); err != nil { // of an earlier run
		t.Fatal(err)
	}
	s := New(Options{Host: h, Observer: o, Socket: socket, NodeName: node.Name, Register: prometheus.NewRegistry(), Log: quiet()})
	listener, err := unixsocket.Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	cs := fake.NewClientset(node)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- s.run(ctx, cs, listener, func() { close(ready) }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(socket); err == nil {
			t.Error("the socket is still there")
		}
	})
	<-ready
	return NewClient(socket), cs
}

func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 3000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not within 30 s: %s", what)
}

func node() *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}} }

func state(name string, phase host.Phase, more func(*host.State)) host.State {
	s := host.State{Name: name, Kind: plugins.Admission, Phase: string(phase), Path: "/p/" + name, Source: "c.yaml:3"}
	if more != nil {
		more(&s)
	}
	return s
}

func TestSocket(t *testing.T) {
	h := &fakeHost{}
	h.Replace(pluginstest.New(plugins.Admission, "b", plugins.Settings{FailurePolicy: "Fail", Timeout: time.Second}))
	ready := state("b", host.Ready, func(s *host.State) {
		s.PID, s.Starts, s.Generation = 7, 1, 1
		s.Description = &pluginv1.Description{Version: "1.2"}
	})
	h.set(ready, state("c", host.Failed, func(s *host.State) { s.Message = "ended with status 2" }),
		state("a", host.Ready, func(s *host.State) { s.Kind = plugins.Storage }), state("b", host.Draining, nil))
	client, _ := start(t, h, NewObserver(), node())
	if info, err := os.Stat(client.socket); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v", info.Mode(), err)
	}
	all, err := client.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range all {
		names = append(names, p.Kind+"/"+p.Name+"/"+p.Phase)
	}
	want := []string{"admission/b/ready", "admission/b/draining", "admission/c/failed", "storage/a/ready"}
	slices.Sort(names[:2]) // which of the two processes of one plugin comes first is the host's
	slices.Sort(want[:2])
	if !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	b, err := client.Get(t.Context(), "b")
	if err != nil || b.PID != 7 || b.FailurePolicy != "Fail" || b.Timeout != "1s" || !strings.Contains(string(b.Description), `"1.2"`) {
		t.Errorf("%+v, %v", b, err)
	}
	if _, err := client.Get(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), `no plugin has the name "x"`) {
		t.Errorf("error %v", err)
	}
}

func TestRestart(t *testing.T) {
	h, o := &fakeHost{}, NewObserver()
	set := func(s host.State, reason string) {
		h.set(s)
		o.Changed(s, reason)
	}
	ready := func(generation uint64, message string) host.State {
		return state("b", host.Ready, func(s *host.State) { s.PID, s.Generation, s.Message = int(generation), generation, message })
	}
	set(ready(1, ""), host.PluginReady)
	client, _ := start(t, h, o, node())

	h.restart = func(string) error {
		time.AfterFunc(60*time.Millisecond, func() { set(ready(2, ""), host.PluginReplaced) })
		return nil
	}
	if p, err := client.Restart(t.Context(), "b"); err != nil || p.PID != 2 {
		t.Errorf("%+v, %v", p, err)
	}
	keeps := "its replacement ended with status 2; keeps running sha256 00"
	for range 2 { // the same again is an answer as well
		h.restart = func(string) error { set(ready(2, keeps), host.PluginFailed); return nil }
		if _, err := client.Restart(t.Context(), "b"); err == nil || err.Error() != "plugin b was not started again: "+keeps {
			t.Errorf("error %v", err)
		}
	}
	h.restart = func(string) error {
		set(state("b", host.Backoff, func(s *host.State) { s.Message = "ended with status 2" }), host.PluginFailed)
		return nil
	}
	if _, err := client.Restart(t.Context(), "b"); err == nil || err.Error() != "plugin b was not started again: ended with status 2" {
		t.Errorf("error %v", err)
	}
	h.restart = func(string) error { return errors.New("not now") }
	if _, err := client.Restart(t.Context(), "b"); err == nil || err.Error() != "not now" {
		t.Errorf("error %v", err)
	}
	h.restart = func(string) error { return nil }
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if _, err := client.Restart(ctx, "b"); err == nil || !strings.Contains(err.Error(), "plugin b is not ready yet (backoff)") {
		t.Errorf("error %v", err)
	}
	if _, err := client.Restart(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), `no plugin has the name "x"`) {
		t.Errorf("error %v", err)
	}
}

func TestNoServer(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "plugins.sock")
	_, err := NewClient(socket).List(t.Context())
	if err == nil || !strings.HasPrefix(err.Error(), "no server runs with the socket "+socket) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// Changes become Events and the plugins' conditions, those of others stay, and those of plugins that are gone go.
func TestReport(t *testing.T) {
	n := node()
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: "Ready", Status: corev1.ConditionTrue},
		{Type: "Plugin/gone", Status: corev1.ConditionTrue},
	}
	h, o := &fakeHost{}, NewObserver()
	h.set(state("a", host.Ready, func(s *host.State) { s.Version = "1.0" }))
	_, cs := start(t, h, o, n)
	conditions := func() map[string]corev1.NodeCondition {
		got, err := cs.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]corev1.NodeCondition{}
		for _, c := range got.Status.Conditions {
			out[string(c.Type)] = c
		}
		return out
	}
	eventually(t, "conditions", func() bool {
		c := conditions()
		return len(c) == 2 && c["Ready"].Status == corev1.ConditionTrue && c["Plugin/a"].Status == corev1.ConditionTrue &&
			c["Plugin/a"].Reason == "PluginReady" && c["Plugin/a"].Message == "admission plugin /p/a 1.0"
	})
	since := conditions()["Plugin/a"].LastTransitionTime

	broken := state("a", host.Backoff, func(s *host.State) {
		s.Message, s.Public = "ended with status 2: the key is 1234; retrying in 4s", "ended with status 2; retrying in 4s"
	})
	h.set(broken)
	o.Changed(broken, host.PluginFailed)
	eventually(t, "a condition that is false", func() bool {
		c := conditions()["Plugin/a"]
		return c.Status == corev1.ConditionFalse && c.Reason == "PluginFailed" && c.Message == broken.Public && !c.LastTransitionTime.Before(&since)
	})
	eventually(t, "an Event", func() bool {
		events, err := cs.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "PluginFailed" && e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n" &&
				e.Message == "admission plugin a: "+broken.Public
		})
	})
}

// A plugin's predecessor that still ends has no condition.
func TestDrainingHasNoCondition(t *testing.T) {
	got := conditions([]host.State{state("a", host.Ready, nil), state("a", host.Draining, nil)})
	if len(got) != 1 || got[0].Type != "Plugin/a" || got[0].Status != corev1.ConditionTrue {
		t.Errorf("%v", got)
	}
}

// What is pending does not grow without the API.
func TestPendingChanges(t *testing.T) {
	o := NewObserver()
	for i := range maxChanges + 10 {
		o.Changed(host.State{Starts: i}, host.PluginFailed)
	}
	pending := o.take()
	if len(pending) != maxChanges || pending[len(pending)-1].state.Starts != maxChanges+9 {
		t.Errorf("%d pending", len(pending))
	}
}

func TestChangeText(t *testing.T) {
	s := state("a", host.Ready, func(s *host.State) { s.Version, s.SHA256 = "1.0", strings.Repeat("0123456789abcdef", 4) })
	for reason, want := range map[string]string{
		host.PluginReady:    "admission plugin a: ready, /p/a 1.0 (sha256 0123456789ab)",
		host.PluginReplaced: "admission plugin a: replaced by /p/a 1.0 (sha256 0123456789ab)",
	} {
		if got := (change{state: s, reason: reason}).text(); got != want {
			t.Errorf("%s: %s", reason, got)
		}
	}
}

func TestWatchFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "config.yaml")
	calls := make(chan struct{}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); watchFile(ctx, file, func() { calls <- struct{}{} }, quiet()) }()
	defer func() { cancel(); <-done }()
	expect := func(what string) {
		t.Helper()
		select {
		case <-calls:
		case <-time.After(20 * time.Second):
			t.Fatalf("%s was not noticed", what)
		}
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// The first look may come after the file.
	write(file, "a")
	expect("a new file")
	write(file+".tmp", "b")
	if err := os.Rename(file+".tmp", file); err != nil {
		t.Fatal(err)
	}
	expect("a file put in its place")
	write(file, "b") // the same
	write(file, "c")
	expect("a file written again")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	expect("a file that is gone")
	if len(calls) > 0 {
		t.Errorf("%d calls for nothing", len(calls))
	}
}

func TestMetrics(t *testing.T) {
	h, o := &fakeHost{}, NewObserver()
	h.set(state("a", host.Ready, func(s *host.State) { s.PID, s.Starts, s.InFlight = os.Getpid(), 3, 2 }), state("a", host.Draining, nil), state("b", host.Failed, nil))
	silent := newPlugin(t, plugins.Storage, "silent", "")
	h.Replace(
		newPlugin(t, plugins.Admission, "a", "# HELP x_total of a\n# TYPE x_total counter\nx_total{z=\"1\",plugin=\"liar\"} 4\n"),
		newPlugin(t, plugins.Admission, "other", "# HELP x_total another\n# TYPE x_total gauge\nx_total 5\n"),
		newPlugin(t, plugins.Admission, "twice", "y 1\ny 2\n"),
		newPlugin(t, plugins.Admission, "garbage", "{{{"),
		newPlugin(t, plugins.Scheduling, "fine", "z 1\n"),
		silent,
	)
	o.Called("a", plugins.Admission, "Review", codes.OK, time.Millisecond)
	o.Called("a", plugins.Admission, "Review", codes.DeadlineExceeded, time.Second)
	o.Changed(host.State{Name: "b", Kind: plugins.Admission}, host.PluginFailed)
	registry := prometheus.NewRegistry()
	var metrics runMetrics
	defer metrics.set(newCollector(t.Context(), h, o, quiet()))()
	registry.MustRegister(&metrics)
	read := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]float64{}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				key := f.GetName()
				for _, l := range m.GetLabel() {
					key += " " + l.GetName() + "=" + l.GetValue()
				}
				out[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
		return out
	}
	got := read()
	for key, want := range map[string]float64{
		"kubelith_plugin_up kind=admission plugin=a":                                              1,
		"kubelith_plugin_starts_total kind=admission plugin=b":                                    0,
		"kubelith_plugin_in_flight kind=admission plugin=b":                                       0,
		"kubelith_plugin_up kind=admission plugin=b":                                              0,
		"kubelith_plugin_starts_total kind=admission plugin=a":                                    3,
		"kubelith_plugin_in_flight kind=admission plugin=a":                                       2,
		"kubelith_plugin_calls_total code=OK kind=admission method=Review plugin=a":               1,
		"kubelith_plugin_calls_total code=DeadlineExceeded kind=admission method=Review plugin=a": 1,
		"kubelith_plugin_call_duration_seconds kind=admission method=Review plugin=a":             2,
		"kubelith_plugin_changes_total kind=admission plugin=b reason=PluginFailed":               1,
		"kubelith_plugin_own_x_total plugin=a z=1":                                                4,
		"kubelith_plugin_own_z plugin=fine":                                                       1,
	} {
		if value, ok := got[key]; !ok || value != want {
			t.Errorf("%s = %v, want %v", key, value, want)
		}
		delete(got, key)
	}
	for _, key := range []string{"memory_bytes", "cpu_seconds_total"} {
		key = "kubelith_plugin_" + key + " kind=admission plugin=a"
		if value, ok := got[key]; !ok || value <= 0 && !strings.Contains(key, "cpu") {
			t.Errorf("%s = %v", key, value)
		}
		delete(got, key)
	}
	if len(got) > 0 {
		t.Errorf("more than expected: %v", got)
	}
	read()
	if silent.asked != 1 {
		t.Errorf("a plugin without metrics was asked %d times", silent.asked)
	}
}

// A group's memory counts, where there is one: plugins may start processes.
func TestMemoryOfGroup(t *testing.T) {
	for stat, want := range map[string]float64{"anon 4096\nfile 9\n": 4096, "rss 1\ntotal_rss 8192\n": 8192} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "memory.stat"), []byte(stat), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, ok := memoryOf(host.State{PID: os.Getpid(), Cgroup: dir}); !ok || got != want {
			t.Errorf("%q: %v", stat, got)
		}
	}
}
