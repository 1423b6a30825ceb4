package host

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
	admissionv1 "kubelith.io/kubelith/plugins/proto/admission/v1"
)

// runHost is the process that is killed: a host with a plugin that has started a daemon. It prints the plugin's pid and
// cgroup.
func runHost(dir string) {
	self, _ := os.Executable()
	log := logrus.New()
	log.SetOutput(io.Discard)
	h := New(Options{DataDir: filepath.Join(dir, "data"), RunDir: filepath.Join(dir, "run"), Log: logrus.NewEntry(log),
		Specs: []Spec{{Spec: process.Spec{Name: "p", Kind: plugins.Admission, Path: self, Env: []string{modeVariable + "=serve"}}}}})
	go h.Run(context.Background(), func() {
		for h.States()[0].Phase != string(Ready) { // the host does not wait for ever
			time.Sleep(10 * time.Millisecond)
		}
		p := h.Plugins(plugins.Admission)[0]
		err := p.Call(context.Background(), "Review", func(ctx context.Context, i plugins.Instance) error {
			_, err := admissionv1.NewAdmissionClient(i.Conn).Review(ctx, &admissionv1.ReviewRequest{Hook: "fork " + os.Getenv("TEST_PLUGIN_SLEEP")})
			return err
		})
		s := h.States()[0]
		fmt.Printf("%d %q %v\n", s.PID, s.Cgroup, err)
	})
	select {}
}

// sleepers are the processes that sleep for that long.
func sleepers(seconds string) []int {
	var out []int
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if content, _ := os.ReadFile(file); string(content) == "/bin/sleep\x00"+seconds+"\x00" {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			out = append(out, pid)
		}
	}
	return out
}

// marker is a time to sleep for that no other process has.
func marker() string { return fmt.Sprintf("%d.%d", 100000+os.Getpid(), time.Now().UnixNano()) }

func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a pid namespace needs root")
	}
}

func TestNoOrphans(t *testing.T) {
	needRoot(t)
	dir, sleep, group := t.TempDir(), marker(), ""
	for range 20 {
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := exec.Command(self)
		c.Env = append(os.Environ(), hostVariable+"="+dir, "TEST_PLUGIN_SLEEP="+sleep)
		out, err := c.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(out).ReadString('\n')
		var pid int
		_, err2 := fmt.Sscanf(line, "%d %q <nil>", &pid, &group)
		if err != nil || err2 != nil {
			c.Process.Kill()
			t.Fatalf("the host says %q (%v)", line, err)
		}
		eventually(t, "the plugin's daemon runs", func() bool { return len(sleepers(sleep)) == 1 })
		c.Process.Kill()
		c.Wait()
		eventually(t, "the plugin and its daemon have ended", func() bool { return !alive(pid) && len(sleepers(sleep)) == 0 })
	}
	// What the killed host left.
	if left, _ := filepath.Glob(filepath.Join(dir, "run", "p", "*.json")); len(left) != 1 {
		t.Errorf("records %v, want one: the others were removed by the next host", left)
	}
	if _, err := process.Sweep(filepath.Join(dir, "run")); err != nil {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "run", "p")); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Dir(group)); group != "" && err == nil {
		t.Errorf("cgroup %s is left", filepath.Dir(group))
	}
}

// A daemon ends with the plugin that started it.
func TestDescendantsEnd(t *testing.T) {
	needRoot(t)
	sleep := marker()
	h := startHost(t, admissionSpec(t, "p", "serve"))
	first := h.ready("p")
	h.mustReview("p", "fork "+sleep)
	if n := len(sleepers(sleep)); n != 1 {
		t.Fatalf("%d daemons", n)
	}
	if err := h.Restart("p"); err != nil {
		t.Fatal(err)
	}
	h.another("p", first)
	eventually(t, "the daemon has ended", func() bool { return len(sleepers(sleep)) == 0 })
}

// limited starts a plugin with a limit, where there are cgroups.
func limitedHost(t *testing.T, l process.Limits) *testHost {
	spec := admissionSpec(t, "greedy", "serve")
	spec.Limits = l
	h := startHost(t, spec, admissionSpec(t, "good", "serve"))
	if s := h.ready("greedy"); s.Cgroup == "" {
		t.Skipf("this host's cgroups cannot be used:\n%s", h.log)
	}
	return h
}

func TestMemoryLimit(t *testing.T) {
	h := limitedHost(t, process.Limits{Memory: 64 << 20})
	first, good := h.ready("greedy"), h.ready("good")
	if _, err := h.review(context.Background(), "greedy", "eat"); codeOf(err) != codes.Unavailable {
		t.Errorf("a call in which all memory is used: %v, want Unavailable", err)
	}
	h.another("greedy", first)
	if want := "error plugin=greedy used all of its 64 MiB of memory and was killed"; !strings.Contains(h.log.String(), want) {
		t.Errorf("not in the log: %s", want)
	}
	if !h.events.has("greedy " + PluginOOM) {
		t.Errorf("events %v", h.events.reasons)
	}
	if s := h.ready("good"); s.PID != good.PID {
		t.Error("the other plugin was killed too")
	}
}

func TestProcessLimit(t *testing.T) {
	h := limitedHost(t, process.Limits{PIDs: 40})
	sleep := marker()
	refused := false
	for range 50 {
		if _, err := h.review(context.Background(), "greedy", "fork "+sleep); err != nil {
			refused = true
			break
		}
	}
	if n := len(sleepers(sleep)); !refused || n > 40 {
		t.Errorf("%d processes were started", n)
	}
}

func TestScore(t *testing.T) {
	h := limitedHost(t, process.Limits{})
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", h.ready("greedy").PID))
	if err != nil || strings.TrimSpace(string(content)) != "300" {
		t.Errorf("oom_score_adj %q, %v", content, err)
	}
}

// A stop takes a process with it that is stopped itself and cannot answer.
func TestStopsWhatHangs(t *testing.T) {
	h := &testHost{t: t, log: &logLines{}, events: newEvents(), dir: t.TempDir()}
	stop := h.start(admissionSpec(t, "p", "serve"))
	s := h.ready("p")
	if err := syscall.Kill(s.PID, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	stop()
	if alive(s.PID) {
		t.Error("the process is there")
	}
}

// Neither goroutines nor files are left of processes that crashed, were replaced, or failed to start.
func TestLeavesNothing(t *testing.T) {
	files := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before, ignored := files(), goleak.IgnoreCurrent()
	h := &testHost{t: t, log: &logLines{}, events: newEvents(), dir: t.TempDir()}
	stop := h.start(admissionSpec(t, "p", "serve"), admissionSpec(t, "never", "exit"), admissionSpec(t, "garbage", "garbage"),
		admissionSpec(t, "refuse", "refuse"))
	for range 3 {
		s := h.ready("p")
		h.review(context.Background(), "p", "exit 1")
		s = h.another("p", s)
		h.Restart("p")
		h.another("p", s)
	}
	stop()
	goleak.VerifyNone(t, ignored)
	if after := files(); after != before {
		t.Errorf("%d files are open, %d were", after, before)
	}
}
