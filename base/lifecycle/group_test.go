package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fake is a component whose Run is a function; the default is ready at once, until cancelled.
type fake struct {
	name   string
	needs  []string
	run    func(ctx context.Context, ready func()) error
	policy Policy
}

func (f fake) Name() string          { return f.name }
func (f fake) Needs() []string       { return f.needs }
func (f fake) RestartPolicy() Policy { return f.policy }
func (f fake) Run(ctx context.Context, ready func()) error {
	if f.run != nil {
		return f.run(ctx, ready)
	}
	ready()
	<-ctx.Done()
	return nil
}

var _ Component = fake{}

// recorder collects events; cancelWhen ends the group's context at the given event.
type recorder struct {
	events     []Event
	cancelWhen string
	cancel     context.CancelFunc
}

func (r *recorder) observe(e Event) {
	r.events = append(r.events, e)
	if fmt.Sprintf("%s %s", e.Component, e.State) == r.cancelWhen {
		r.cancel()
	}
}

func (r *recorder) index(component string, s State) int {
	return slices.IndexFunc(r.events, func(e Event) bool { return e.Component == component && e.State == s })
}

// runGroup runs the components until cancelWhen happens or one fails, and at most half a minute.
func runGroup(t *testing.T, opts Options, cancelWhen string, cs ...Component) (*recorder, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	rec := &recorder{cancelWhen: cancelWhen, cancel: cancel}
	opts.Observe = rec.observe
	g, err := NewGroup(opts, cs...)
	if err != nil {
		t.Fatal(err)
	}
	err = g.Run(ctx)
	if ctx.Err() == context.DeadlineExceeded {
		t.Fatalf("the group never got to %q: %v", cancelWhen, rec.events)
	}
	return rec, err
}

func TestNewGroupRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		components []Component
		want       string
	}{
		"duplicate":    {[]Component{fake{name: "a"}, fake{name: "a"}}, `two components are named "a"`},
		"unknown need": {[]Component{fake{name: "a", needs: []string{"b"}}}, `a needs "b", which is not in the group`},
		"self":         {[]Component{fake{name: "a", needs: []string{"a"}}}, "a -> a"},
		"cycle": {[]Component{
			fake{name: "z", needs: []string{"a"}},
			fake{name: "a", needs: []string{"b"}},
			fake{name: "b", needs: []string{"c"}},
			fake{name: "c", needs: []string{"a"}},
		}, "dependency cycle of components: a -> b -> c -> a"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := NewGroup(Options{}, tc.components...)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	// Given in the wrong order on purpose. kubelet needs etcd only through apiserver.
	rec, err := runGroup(t, Options{}, "kubelet ready",
		fake{name: "kubelet", needs: []string{"apiserver", "containerd"}},
		fake{name: "apiserver", needs: []string{"etcd"}},
		fake{name: "containerd"},
		fake{name: "etcd"},
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range [][2]int{
		{rec.index("etcd", Ready), rec.index("apiserver", Starting)},
		{rec.index("apiserver", Ready), rec.index("kubelet", Starting)},
		{rec.index("containerd", Ready), rec.index("kubelet", Starting)},
		{rec.index("kubelet", Stopped), rec.index("apiserver", Stopping)},
		{rec.index("kubelet", Stopped), rec.index("containerd", Stopping)},
		{rec.index("apiserver", Stopped), rec.index("etcd", Stopping)},
	} {
		if o[0] < 0 || o[1] < 0 || o[0] > o[1] {
			t.Errorf("event %d should be before %d: %v", o[0], o[1], rec.events)
		}
	}
	if len(rec.events) != 4*4 {
		t.Errorf("%d events, want starting, ready, stopping, stopped of four components: %v", len(rec.events), rec.events)
	}
}

func TestDependencyOutlivesFailedMiddle(t *testing.T) {
	// apiserver dies; etcd must still wait for kubelet, which needs it only through the dead one.
	stopKubelet := make(chan struct{})
	rec, err := runGroup(t, Options{}, "",
		fake{name: "etcd"},
		fake{name: "apiserver", needs: []string{"etcd"}, run: func(ctx context.Context, ready func()) error {
			ready()
			<-stopKubelet
			return errors.New("boom")
		}},
		fake{name: "kubelet", needs: []string{"apiserver"}, run: func(ctx context.Context, ready func()) error {
			ready()
			close(stopKubelet)
			<-ctx.Done()
			return nil
		}},
	)
	if err == nil || err.Error() != "apiserver: boom" {
		t.Errorf("error %v", err)
	}
	if a, b := rec.index("kubelet", Stopped), rec.index("etcd", Stopping); a < 0 || b < 0 || a > b {
		t.Errorf("etcd stopped before kubelet: %v", rec.events)
	}
}

func TestFailure(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		run  func(ctx context.Context, ready func()) error
		want string
		log  string
	}{
		"before ready": {run: func(context.Context, func()) error { return boom }, want: "b: boom"},
		"after ready":  {run: func(_ context.Context, ready func()) error { ready(); return boom }, want: "b: boom"},
		"nil":          {run: func(_ context.Context, ready func()) error { ready(); return nil }, want: "b: stopped unexpectedly"},
		"panic": {run: func(context.Context, func()) error { panic("ouch") }, want: "b: panic: ouch",
			log: "group_test.go"},
		"goexit": {run: func(context.Context, func()) error { runtime.Goexit(); return nil },
			want: "b: its goroutine called runtime.Goexit"},
		"own cancelled context": {run: func(context.Context, func()) error { return context.Canceled }, want: "b: context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := logrus.New()
			log.SetOutput(&out)
			rec, err := runGroup(t, Options{Log: log}, "",
				fake{name: "a"},
				fake{name: "b", needs: []string{"a"}, run: tc.run},
				fake{name: "never", needs: []string{"b", "slow"}},
				fake{name: "slow", run: func(ctx context.Context, ready func()) error { <-ctx.Done(); return nil }},
			)
			if err == nil || err.Error() != tc.want {
				t.Errorf("error %v, want %q", err, tc.want)
			}
			if tc.want == "b: boom" && !errors.Is(err, boom) {
				t.Error("the error does not wrap the component's")
			}
			if !strings.Contains(out.String(), tc.log) {
				t.Errorf("log %q has no %q", out.String(), tc.log)
			}
			if rec.index("a", Stopped) < 0 || rec.index("slow", Stopped) < 0 {
				t.Errorf("the others were not stopped: %v", rec.events)
			}
			if rec.index("never", Starting) >= 0 {
				t.Error("a component started although its need never became ready")
			}
			if i := rec.index("b", Failed); i < 0 || rec.events[i].Err == nil {
				t.Errorf("no failed event with an error: %v", rec.events)
			}
		})
	}
}

func TestFailureWhileStopping(t *testing.T) {
	_, err := runGroup(t, Options{}, "a ready", fake{name: "a", run: func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return errors.New("could not flush")
	}})
	if err == nil || err.Error() != "a: could not flush" {
		t.Errorf("error %v", err)
	}
	_, err = runGroup(t, Options{}, "a ready", fake{name: "a", run: func(ctx context.Context, ready func()) error {
		ready()
		<-ctx.Done()
		return fmt.Errorf("watch: %w", ctx.Err())
	}})
	if err != nil {
		t.Errorf("the cancellation that was asked for came back as an error: %v", err)
	}
}

func TestReadyTwiceAndLate(t *testing.T) {
	rec, err := runGroup(t, Options{}, "b ready",
		fake{name: "a", run: func(ctx context.Context, ready func()) error {
			ready()
			ready()
			<-ctx.Done()
			ready()
			return nil
		}},
		fake{name: "late", run: func(ctx context.Context, ready func()) error {
			<-ctx.Done()
			ready()
			return nil
		}},
		fake{name: "b", needs: []string{"a"}},
	)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range rec.events {
		if e.Component == "a" && e.State == Ready {
			n++
		}
	}
	if n != 1 || rec.index("late", Ready) >= 0 {
		t.Errorf("ready events: %v", rec.events)
	}
}

func TestStopTimeout(t *testing.T) {
	release := make(chan struct{})
	ended := make(chan struct{})
	start := time.Now()
	_, err := runGroup(t, Options{StopTimeout: 50 * time.Millisecond}, "kubelet ready",
		fake{name: "etcd"},
		fake{name: "kubelet", needs: []string{"etcd"}, run: func(ctx context.Context, ready func()) error {
			defer close(ended)
			ready()
			<-release
			ready()
			return nil
		}},
	)
	want := "did not stop within 50ms: kubelet (waiting for them: etcd): the process exits anyway; report it with the log if it happens again"
	if err == nil || err.Error() != want {
		t.Errorf("error %v, want %q", err, want)
	}
	if d := time.Since(start); d > time.Minute {
		t.Errorf("took %s", d)
	}
	close(release) // a component that ends after the group gave up must not block: goleak checks
	<-ended
}

// A failure that keeps another component from stopping is the one line that the user sees.
func TestStopTimeoutAfterFailure(t *testing.T) {
	release, ended := make(chan struct{}), make(chan struct{})
	broken := errors.New("disk full")
	up := make(chan struct{})
	_, err := runGroup(t, Options{StopTimeout: 50 * time.Millisecond}, "",
		fake{name: "etcd", run: func(_ context.Context, ready func()) error {
			ready()
			<-up
			return broken
		}},
		fake{name: "apiserver", needs: []string{"etcd"}, run: func(context.Context, func()) error {
			defer close(ended)
			close(up)
			<-release
			return nil
		}},
	)
	if err == nil || err.Error() != "etcd: disk full" {
		t.Errorf("error %v, want etcd's alone", err)
	}
	close(release)
	<-ended
}

func TestContext(t *testing.T) {
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "v"))
	defer cancel()
	var needed context.Context
	g, err := NewGroup(Options{},
		fake{name: "a", run: func(ctx context.Context, ready func()) error {
			needed = ctx
			ready()
			<-ctx.Done()
			return nil
		}},
		fake{name: "b", needs: []string{"a"}, run: func(ctx context.Context, ready func()) error {
			if ctx.Value(key{}) != "v" {
				return errors.New("the values of the group's context are missing")
			}
			ready()
			cancel()
			<-ctx.Done()
			if needed.Err() != nil {
				return errors.New("a was cancelled while b was running")
			}
			return nil
		}},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
	if err := g.Run(ctx); err == nil {
		t.Error("a group ran twice")
	}
}

func TestCancelledBeforeRun(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	g, err := NewGroup(Options{}, fake{name: "a", run: func(context.Context, func()) error {
		return errors.New("started")
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Run(ctx); err != nil {
		t.Error(err)
	}
}
