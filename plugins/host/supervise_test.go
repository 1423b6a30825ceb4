package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/pluginstest"
	"kubelith.io/kubelith/plugins/process"
	admissionv1 "kubelith.io/kubelith/plugins/proto/admission/v1"
)

// alive reports whether a process runs. What ended without its parent is collected by the machine's init when it
// comes to it.
func alive(pid int) bool {
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(content), ") ")
	return err == nil && !strings.HasPrefix(rest, "Z")
}

// another waits until another process serves.
func (h *testHost) another(name string, before State) State {
	h.t.Helper()
	return h.state(name, "another process", func(s State) bool { return isReady(s) && s.Generation != before.Generation })
}

// woken fails the test unless callers that wait for a process are woken.
func woken(t *testing.T, next <-chan struct{}) {
	t.Helper()
	select {
	case <-next:
	case <-time.After(20 * time.Second):
		t.Error("callers still wait for a process")
	}
}

func TestStartsAgain(t *testing.T) {
	h := startHost(t, admissionSpec(t, "weak", "serve"), admissionSpec(t, "good", "serve"))
	first, good := h.ready("weak"), h.ready("good")
	next := h.plugin("weak").Next()
	if _, err := h.review(context.Background(), "weak", "exit 3"); status.Code(err) != codes.Unavailable {
		t.Errorf("a call in which the plugin ends: %v, want Unavailable", err)
	}
	select {
	case <-next:
		t.Error("a process serves at once")
	default:
	}
	second := h.another("weak", first)
	woken(t, next)
	if _, err := h.review(context.Background(), "weak", "panic oh dear"); status.Code(err) != codes.Unavailable {
		t.Errorf("a call in which the plugin panics: %v, want Unavailable", err)
	}
	third := h.another("weak", second)
	if third.Starts != 3 {
		t.Errorf("%d starts", third.Starts)
	}
	if alive(first.PID) || alive(second.PID) {
		t.Error("a former process is there")
	}
	for _, want := range []string{"error plugin=weak ended with status 3; retrying in ", "error plugin=weak ended with status 2: panic: oh dear"} {
		if !strings.Contains(h.log.String(), want) {
			t.Errorf("not in the log: %s", want)
		}
	}
	if s := h.ready("good"); s.PID != good.PID {
		t.Error("the other plugin was started again too")
	}
}

// TestCallOnClosedConnection: a call that finds the connection of an ended process closed is not one that its caller
// canceled.
func TestCallOnClosedConnection(t *testing.T) {
	h := startHost(t, admissionSpec(t, "weak", "serve"))
	first := h.ready("weak")
	err := h.plugin("weak").Call(context.Background(), "Review", func(ctx context.Context, i plugins.Instance) error {
		if err := syscall.Kill(first.PID, syscall.SIGKILL); err != nil {
			return err
		}
		for i.Conn.(*grpc.ClientConn).GetState() != connectivity.Shutdown {
			time.Sleep(time.Millisecond)
		}
		_, err := admissionv1.NewAdmissionClient(i.Conn).Review(ctx, &admissionv1.ReviewRequest{})
		return err
	})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("got %v, want Unavailable", err)
	}
	h.another("weak", first)
}

func TestHangs(t *testing.T) {
	h := startHost(t, admissionSpec(t, "stuck", "serve"))
	first := h.ready("stuck")
	pluginstest.Pause(t, first.PID)
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	if _, err := h.review(ctx, "stuck", ""); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a call: %v, want DeadlineExceeded", err)
	}
	h.state("stuck", "unhealthy", func(s State) bool { return s.Phase == string(Unhealthy) })
	var missing *plugins.NotRunningError
	if _, err := h.review(context.Background(), "stuck", ""); !errors.As(err, &missing) { // without a deadline
		t.Errorf("a call to an unhealthy plugin: %v, want NotRunningError", err)
	}
	h.another("stuck", first)
	if alive(first.PID) {
		t.Error("the process that hung is there")
	}
	if !strings.Contains(h.log.String(), "error plugin=stuck did not answer two health checks of 5s: killed; retrying in") || !h.events.has("stuck "+PluginUnhealthy) {
		t.Error("no line in the log, or no Event")
	}
}

func TestHangsShortly(t *testing.T) {
	h := startHost(t, admissionSpec(t, "stuck", "serve"))
	first := h.ready("stuck")
	i, next := h.plugin("stuck").current.Load(), h.plugin("stuck").Next()
	i.unhealthy.Store(true) // as after one miss
	eventually(t, "it is well again", func() bool { return !i.unhealthy.Load() })
	woken(t, next)
	if s := h.ready("stuck"); s.PID != first.PID {
		t.Error("it was started again")
	}
}

// load calls until it is stopped; an error fails the test.
func (h *testHost) load(name string) (stop func() map[string]int) {
	done := make(chan struct{})
	answers := map[string]int{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			answer, err := h.review(context.Background(), name, "")
			if err != nil {
				h.t.Errorf("a call failed: %v", err)
				return
			}
			answers[answer]++
		}
	})
	return func() map[string]int {
		close(done)
		wg.Wait()
		return answers
	}
}

func TestReplacedFile(t *testing.T) {
	spec := admissionSpec(t, "p", "serve")
	spec.Path = filepath.Join(t.TempDir(), "p")
	install(t, spec.Path, "1")
	h := startHost(t, spec)
	first := h.ready("p")

	long := make(chan error)
	go func() {
		_, err := h.review(context.Background(), "p", "sleep 3s")
		long <- err
	}()
	eventually(t, "a long call is under way", func() bool { return h.plugin("p").State().InFlight == 1 })
	stop := h.load("p")
	sum := install(t, spec.Path, "2")
	second := h.another("p", first)
	if second.SHA256 != sum {
		t.Errorf("sha256 %s runs, want %s", second.SHA256, sum)
	}
	if !alive(first.PID) {
		t.Error("the former process ended with a call under way")
	}
	if err := <-long; err != nil {
		t.Errorf("the call that was under way: %v", err)
	}
	eventually(t, "the former process has ended", func() bool { return !alive(first.PID) })
	stop()
	if !h.events.has("p " + PluginReplaced) {
		t.Error("no Event was created")
	}

	// The same content in another file: nothing is started. The change after it shows that this one was seen.
	install(t, spec.Path, "2")
	changed := process.StatID(spec.Path)
	h.refresh()
	p := h.plugin("p")
	eventually(t, "the new file is known", func() bool { return *p.current.Load().exe.Load() == changed })
	if s := h.ready("p"); s.Generation != second.Generation {
		t.Error("a file with the same content was started")
	}
}

func TestBrokenReplacement(t *testing.T) {
	spec := admissionSpec(t, "p", "serve")
	spec.Path = filepath.Join(t.TempDir(), "p")
	install(t, spec.Path, "1")
	h := startHost(t, spec)
	first := h.ready("p")
	stop := h.load("p")
	if err := os.WriteFile(spec.Path+".new", []byte("#!/bin/sh\necho wrong >&2\nexit 4\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(spec.Path+".new", spec.Path); err != nil {
		t.Fatal(err)
	}
	want := "its replacement ended with status 4: wrong; keeps running sha256 " + first.SHA256[:12]
	h.state("p", "reported as keeping the old one", func(s State) bool { return s.Message == want && s.PID == first.PID })
	if n := strings.Count(h.log.String(), want); n != 1 {
		t.Errorf("%d lines of it in the log", n)
	}
	h.refresh() // as each minute: it is not tried again

	broken := spec
	broken.Config = []byte(`"broken"`)
	install(t, spec.Path, "1")
	h.Apply([]Spec{broken})
	h.state("p", "reported as keeping the old one", func(s State) bool {
		return strings.Contains(s.Message, "cannot describe itself: broken configuration; keeps running") && s.PID == first.PID
	})
	spec.Config = []byte(`"good"`)
	h.Apply([]Spec{spec})
	if s := h.another("p", first); s.Version != `p"good"` || s.Message != "" || s.Starts != 2 {
		t.Errorf("state %+v", s)
	}
	stop()
}

func TestApply(t *testing.T) {
	a, b := admissionSpec(t, "a", "serve"), admissionSpec(t, "b", "serve")
	h := startHost(t, a, b)
	firstA, firstB := h.ready("a"), h.ready("b")
	told := make(chan struct{}, 100)
	defer h.Subscribe(plugins.Admission, func() { told <- struct{}{} })()

	a.Settings = plugins.Settings{FailurePolicy: "Ignore", Timeout: time.Second}
	a.Source = "test.yaml:9"
	c := admissionSpec(t, "c", "serve")
	h.Apply([]Spec{c, a})
	<-told
	if got := names(h.Plugins(plugins.Admission)); got != "c a" {
		t.Errorf("plugins %q", got)
	}
	h.ready("c")
	if s := h.ready("a"); s.PID != firstA.PID || s.Source != "test.yaml:9" || h.plugin("a").Settings() != a.Settings {
		t.Errorf("state %+v", s)
	}
	eventually(t, "b has ended", func() bool { return !alive(firstB.PID) && len(h.States()) == 2 })

	if err := h.Restart("a"); err != nil {
		t.Fatal(err)
	}
	h.another("a", firstA)
	if err := h.Restart("b"); err == nil || err.Error() != `there is no plugin "b": there are c, a` {
		t.Errorf("error %v", err)
	}
}

func names(all []plugins.Plugin) string {
	var out []string
	for _, p := range all {
		out = append(out, p.Name())
	}
	return strings.Join(out, " ")
}

// installScript creates a plugin in a directory: a program that is given no arguments finds its mode in no environment,
// a script brings it.
func installScript(t *testing.T, dir, name string) (path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(dir, name)
	text := fmt.Sprintf("#!/bin/sh\n%s=serve %s=script exec %s\n", modeVariable, versionVariable, self)
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDirectory(t *testing.T) {
	configured := admissionSpec(t, "taken", "serve")
	h := startHost(t, configured)
	h.ready("taken")
	dir := h.kindDir(plugins.Admission)
	installScript(t, dir, "taken")
	installScript(t, dir, ".hidden")
	installScript(t, dir, "READ.ME")
	path := installScript(t, dir, "found")
	eventually(t, "the file is a plugin", func() bool { return names(h.Plugins(plugins.Admission)) == "taken found" })
	if s := h.ready("found"); s.Source != dir || s.Version != "script" {
		t.Errorf("state %+v", s)
	}
	for _, want := range []string{
		"plugin taken of " + dir + " is ignored: test.yaml:1 has one of that name",
		`plugin "READ.ME" of ` + dir + " is ignored: a name has",
	} {
		if n := strings.Count(h.log.String(), want); n != 1 {
			t.Errorf("%d times in the log: %s", n, want)
		}
	}
	away := dir + ".away"
	if err := errors.Join(os.Rename(dir, away), os.WriteFile(dir, nil, 0o600)); err != nil { // not a directory: cannot be read
		t.Fatal(err)
	}
	h.refresh()
	if got := names(h.Plugins(plugins.Admission)); got != "taken found" {
		t.Errorf("while the directory cannot be read, the plugins are %q", got)
	}
	if err := errors.Join(os.Remove(dir), os.Rename(away, dir), os.Remove(path)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the plugin is gone with its file", func() bool { return len(h.States()) == 1 })
}

// A plugin's description is known after a restart, before the plugin runs.
func TestDescriptionIsKept(t *testing.T) {
	h := &testHost{t: t, log: &logLines{}, events: newEvents(), dir: t.TempDir()}
	spec := admissionSpec(t, "p", "serve")
	stop := h.start(spec)
	h.ready("p")
	stop()
	again := New(Options{Specs: []Spec{spec}, DataDir: filepath.Join(h.dir, "data"), RunDir: filepath.Join(h.dir, "run")})
	if d := again.Plugins(plugins.Admission)[0].Description(); d.GetVersion() != "p" {
		t.Errorf("description %v", d)
	}
	spec.Kind = plugins.Scheduling
	again = New(Options{Specs: []Spec{spec}, DataDir: filepath.Join(h.dir, "data"), RunDir: filepath.Join(h.dir, "run")})
	if d := again.Plugins(plugins.Scheduling)[0].Description(); d != nil {
		t.Errorf("as another kind: description %v", d)
	}
}
