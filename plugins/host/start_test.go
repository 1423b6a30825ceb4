package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/proto"
)

func TestServes(t *testing.T) {
	t.Setenv("SECRET_OF_THE_SERVER", "1")
	spec := admissionSpec(t, "first", "serve")
	spec.Config = []byte(`{"a":1}`)
	spec.Env = append(spec.Env, "GOMAXPROCS=1", "LC_ALL=C")
	h := startHost(t, spec)
	s := h.ready("first")
	if s.Version != `first{"a":1}` || s.Description.GetAdmission() == nil || s.Starts != 1 || s.Generation == 0 || len(s.SHA256) != 64 {
		t.Errorf("state %+v", s)
	}
	if got := h.mustReview("first", ""); got != "first" {
		t.Errorf("answer %q", got)
	}
	environment := h.mustReview("first", "environment")
	if strings.Contains(environment, "SECRET_OF_THE_SERVER") || !strings.Contains(environment, "TMPDIR="+h.dir) ||
		!strings.Contains(environment, "GOMAXPROCS=1\nLC_ALL=C\n") {
		t.Errorf("the plugin's environment:\n%s", environment)
	}
	comm, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", s.PID))
	if err != nil || string(comm) != "first\n" {
		t.Errorf("the process is named %q (%v)", comm, err)
	}
	if self := h.mustReview("first", "self"); os.Geteuid() == 0 && !strings.HasPrefix(self, "1 ") {
		t.Errorf("as root it has a pid namespace; it says %q", self)
	}
	if !h.events.has("first " + PluginReady) {
		t.Errorf("events %v", h.events.reasons)
	}
	h.mustBeCounted(codes.OK, 3)
}

func (h *testHost) mustBeCounted(code codes.Code, n int) {
	h.t.Helper()
	h.events.mu.Lock()
	defer h.events.mu.Unlock()
	if h.events.calls[code] != n {
		h.t.Errorf("calls counted: %v; want %d of %v", h.events.calls, n, code)
	}
}

func TestFaultsAtStart(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, mode os.FileMode, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	at := func(path string) func(*Spec) { return func(s *Spec) { s.Path = path } }
	for name, tc := range map[string]struct {
		mode   string
		change func(*Spec)
		want   string // regular expression
	}{
		"missing":       {"", at(filepath.Join(dir, "none")), `none does not exist: copy it there, or remove the plugin from test.yaml:1`},
		"notexecutable": {"", at(file("plain", 0o644, "#!/bin/sh\n")), `plain is not executable: chmod \+x`},
		"open":          {"", at(file("open", 0o757, "#!/bin/sh\n")), `can be written by others.*: chmod go-w .*/open`},
		"directory":     {"", at(dir), `is not a regular file`},
		"text":          {"", at(file("text", 0o755, "hello")), `is not a program`},
		"nointerpreter": {"", at(file("script", 0o755, "#!/does/not/exist\n")), `the interpreter in its first line does not exist`},
		"checksum":      {"serve", func(s *Spec) { s.SHA256 = strings.Repeat("0", 64) }, `has the SHA-256 [0-9a-f]{12}, but test.yaml:1 requires 000000000000`},
		"garbage":       {"garbage", nil, `is not a plugin: its first line of output is not go-plugin's handshake: "Hello, I am \?\[31mno plugin"`},
		"flood":         {"flood", nil, `is not a plugin: its first line of output is not go-plugin's handshake: "x{82}"`},
		"exit":          {"exit", nil, `ended with status 3: the licence has run out; retrying in`},
		"silent":        {"silent", nil, `printed no handshake`},
		"close":         {"close", nil, `printed no handshake`},
		"plain":         {"plain", nil, `does not support mutual TLS`},
		"elsewhere":     {"elsewhere", nil, `listens on tcp 127.0.0.1:1`},
		"netrpc":        {"netrpc", nil, `speaks net/rpc`},
		"future":        {"future", nil, `speaks protocol "7", this kubelith speaks 1`},
		"refuse":        {"refuse", nil, `cannot describe itself: config.limit is missing`},
		"die":           {"die", nil, `ended with status 2: panic: no way`},
		"scheduling":    {"scheduling", nil, `is a plugin for scheduling, not for admission`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := admissionSpec(t, name, tc.mode)
			if tc.change != nil {
				tc.change(&spec)
			}
			h := startHost(t, spec)
			// Of one that ends slowly, only a later attempt says why.
			s := h.state(name, "reported as failed: "+tc.want, func(s State) bool {
				return strings.Contains(s.Message, "retrying in") && regexp.MustCompile(tc.want).MatchString(s.Message)
			})
			for _, words := range []string{"the licence has run out", "no way", "I am", "xxx"} {
				if strings.Contains(s.Public, words) {
					t.Errorf("the public state has what it printed: %q", s.Public)
				}
			}
			if strings.ContainsAny(s.Message, "\n\x1b") {
				t.Errorf("message %q is not one line of text", s.Message)
			}
			if !strings.Contains(h.log.String(), "error plugin="+name+" ") {
				t.Error("no error line of the plugin in the log")
			}
			if !h.events.has(name + " " + PluginFailed) {
				t.Error("no Event was created")
			}
			_, err := h.review(context.Background(), name, "")
			var missing *plugins.NotRunningError
			if !errors.As(err, &missing) {
				t.Errorf("a call: %v, want NotRunningError", err)
			} else if missing.Reason != h.plugin(name).State().Public && strings.Contains(missing.Reason, "licence") {
				t.Errorf("the user of the API reads what it printed: %v", missing)
			}
		})
	}
}

// A plugin that never gets ready is given up after a while, and one that is fixed starts at once.
func TestFixed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p")
	spec := admissionSpec(t, "fixed", "serve")
	spec.Path = path
	h := startHost(t, spec)
	h.state("fixed", "given up", func(s State) bool { return s.Phase == string(Failed) })
	install(t, path, "1")
	h.ready("fixed")
}

func TestAsAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may start a process as another user")
	}
	spec := admissionSpec(t, "nobody", "serve")
	spec.Path = filepath.Join(t.TempDir(), "p") // as the data directory: closed to other users
	install(t, spec.Path, "1")
	uid := int64(65534)
	spec.Limits.UID = &uid
	h := startHost(t, spec)
	h.ready("nobody")
	if got := h.mustReview("nobody", "self"); got != "1 65534 65534" {
		t.Errorf("pid, uid and gid are %q", got)
	}
}

func TestSizes(t *testing.T) {
	h := startHost(t, admissionSpec(t, "big", "serve"))
	h.ready("big")
	if got := h.mustReview("big", fmt.Sprint("big ", proto.MaxResponseSize-100)); len(got) != proto.MaxResponseSize-100 {
		t.Errorf("%d bytes", len(got))
	}
	if _, err := h.review(context.Background(), "big", fmt.Sprint("big ", proto.MaxResponseSize+1)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("an answer that is too large: %v, want ResourceExhausted", err)
	}
	if s := h.ready("big"); s.Starts != 1 {
		t.Errorf("started %d times", s.Starts)
	}
}

func TestOutput(t *testing.T) {
	h := startHost(t, admissionSpec(t, "loud", "serve"))
	h.ready("loud")
	h.mustReview("loud", "print one\x1b[31m two")
	h.mustReview("loud", `raw {"@level":"warn","@message":"from hclog","@timestamp":"2030-01-01T00:00:00Z","@module":"m","count":7,"plugin":"other"}`)
	eventually(t, "both lines are in the log", func() bool {
		log := h.log.String()
		return strings.Count(log, "info plugin=loud one?[31m two") == 2 && // stdout and stderr
			regexp.MustCompile(`warning plugin=loud from hclog map\[count:7 logger:m plugin:loud\]`).MatchString(log)
	})
	h.mustReview("loud", "raw "+strings.Repeat("again\n", 5000))
	eventually(t, "some were dropped", func() bool {
		return regexp.MustCompile(`warning plugin=loud \d+ lines of its output dropped`).MatchString(h.log.String())
	})
	if n := strings.Count(h.log.String(), "again"); n > 3*200 { // a second's limit; it may take three
		t.Errorf("%d lines were logged", n)
	}
}

func TestInFlight(t *testing.T) {
	h := startHost(t, admissionSpec(t, "slow", "serve"))
	h.ready("slow")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	for range maxCalls {
		go func() {
			_, err := h.review(ctx, "slow", "sleep 1h")
			ended <- err
		}()
	}
	eventually(t, "all calls are under way", func() bool { return len(h.plugin("slow").current.Load().slots) == maxCalls })
	short, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	if _, err := h.review(short, "slow", ""); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one call too many: %v, want it to wait for its deadline", err)
	}
	cancel()
	for range maxCalls {
		if err := <-ended; status.Code(err) != codes.Canceled {
			t.Errorf("a call ended with %v", err)
		}
	}
	if got := h.mustReview("slow", ""); got != "slow" {
		t.Errorf("answer %q", got)
	}
}

func TestTimeoutOfSettings(t *testing.T) {
	spec := admissionSpec(t, "slow", "serve")
	spec.Settings.Timeout = 50 * time.Millisecond
	h := startHost(t, spec)
	h.ready("slow")
	if _, err := h.review(context.Background(), "slow", "sleep 1h"); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("error %v, want DeadlineExceeded", err)
	}
	h.mustBeCounted(codes.DeadlineExceeded, 1)
}
