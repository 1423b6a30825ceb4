package host

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
	admissionv1 "kubelith.io/kubelith/plugins/proto/admission/v1"
)

// waitFor is the longest that a test waits for what must come.
const waitFor = time.Minute

// logLines collects the log.
type logLines struct {
	mu    sync.Mutex
	lines []string
}

func (l *logLines) Levels() []logrus.Level { return logrus.AllLevels }

func (l *logLines) Fire(e *logrus.Entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf("%s plugin=%v %s %v", e.Level, e.Data["plugin"], e.Message, e.Data))
	return nil
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Join(l.lines, "\n")
}

// events is an Observer.
type events struct {
	mu      sync.Mutex
	reasons []string
	calls   map[codes.Code]int
}

func newEvents() *events { return &events{calls: map[codes.Code]int{}} }

func (e *events) Called(_ string, _ plugins.Kind, _ string, code codes.Code, _ time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.calls[code]++
}

func (e *events) Changed(s State, reason string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons = append(e.reasons, s.Name+" "+reason)
}

func (e *events) has(reason string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, r := range e.reasons {
		if r == reason {
			return true
		}
	}
	return false
}

// testHost is a host that runs.
type testHost struct {
	*Host
	t      *testing.T
	log    *logLines
	events *events
	dir    string
	// as in Options; nil for most
	credentials func(spec *process.Spec, dir, seen string) ([]string, error)
}

func startHost(t *testing.T, specs ...Spec) *testHost {
	t.Helper()
	h := &testHost{t: t, log: &logLines{}, events: newEvents(), dir: t.TempDir()}
	h.start(specs...)
	return h
}

func (h *testHost) start(specs ...Spec) (stop func()) {
	h.t.Helper()
	log := logrus.New()
	log.SetOutput(io.Discard)
	log.SetLevel(logrus.DebugLevel)
	log.AddHook(h.log)
	h.Host = New(Options{Specs: specs, DataDir: filepath.Join(h.dir, "data"), RunDir: filepath.Join(h.dir, "run"), NodeName: "n1",
		Observe: h.events, Credentials: h.credentials, Log: logrus.NewEntry(log)})
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- h.Run(ctx, func() { close(ready) }) }()
	stop = sync.OnceFunc(func() {
		groups := map[string]bool{} // that of all plugins, and those in it
		for _, s := range h.States() {
			if s.Cgroup != "" {
				groups[s.Cgroup], groups[filepath.Dir(s.Cgroup)] = true, true
			}
		}
		cancel()
		if err := <-ended; err != nil {
			h.t.Errorf("the host ended with %v", err)
		}
		if left, _ := filepath.Glob(filepath.Join(h.dir, "run", "p", "*")); len(left) > 0 {
			h.t.Errorf("left in the run directory: %v", left)
		}
		for dir := range groups {
			if _, err := os.Stat(dir); err == nil {
				h.t.Errorf("cgroup %s is left", dir)
			}
		}
		if h.t.Failed() {
			h.t.Logf("log:\n%s", h.log)
		}
	})
	h.t.Cleanup(stop)
	select {
	case <-ready:
	case <-time.After(waitFor):
		h.t.Fatal("the host does not get ready")
	}
	return stop
}

// plugin is the one of that name.
func (h *testHost) plugin(name string) *plugin {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.wanted {
		if p.name == name {
			return p
		}
	}
	h.t.Fatalf("there is no plugin %s", name)
	return nil
}

// state waits until the plugin is as ok wants it.
func (h *testHost) state(name, what string, ok func(State) bool) State {
	h.t.Helper()
	var s State
	eventually(h.t, fmt.Sprintf("plugin %s is %s", name, what), func() bool {
		s = h.plugin(name).State()
		return ok(s)
	})
	return s
}

func (h *testHost) ready(name string) State {
	h.t.Helper()
	return h.state(name, "ready", isReady)
}

func isReady(s State) bool { return s.Phase == string(Ready) && s.PID > 0 }

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(waitFor); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not in %v: %s", waitFor, what)
		}
	}
}

// review calls the plugin's Review.
func (h *testHost) review(ctx context.Context, name, hook string) (string, error) {
	var answer *admissionv1.ReviewResponse
	err := h.plugin(name).Call(ctx, "Review", func(ctx context.Context, i plugins.Instance) (err error) {
		answer, err = admissionv1.NewAdmissionClient(i.Conn).Review(ctx, &admissionv1.ReviewRequest{Hook: hook})
		return err
	})
	return string(answer.GetReview()), err
}

func (h *testHost) mustReview(name, hook string) string {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitFor)
	defer cancel()
	answer, err := h.review(ctx, name, hook)
	if err != nil {
		h.t.Fatalf("%s of plugin %s: %v", hook, name, err)
	}
	return answer
}

// install copies the test binary, with another checksum for each version.
func install(t *testing.T, path, version string) (sum string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	content = append(content, version...) // behind what the loader reads
	temp := filepath.Join(filepath.Dir(path), ".new")
	if err := os.WriteFile(temp, content, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temp, path); err != nil {
		t.Fatal(err)
	}
	hash := sha256.Sum256(content)
	return hex.EncodeToString(hash[:])
}

// admissionSpec is a plugin that the test binary itself serves.
func admissionSpec(t *testing.T, name, mode string) Spec {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{Spec: process.Spec{Name: name, Kind: plugins.Admission, Path: self, Source: "test.yaml:1",
		Env: []string{modeVariable + "=" + mode, versionVariable + "=" + name}}}
}
