package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/klog/v2"

	"kubelith.io/kubelith/components/lifecycle"
)

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(Output{Progress: &out}, make([]lifecycle.Component, 2), goal{needed: []string{"etcd", "apiserver"}, reached: "kubeconfig: /etc/k.yaml"})
	for _, e := range []lifecycle.Event{
		{Component: "etcd", State: lifecycle.Starting},
		{Component: "etcd", State: lifecycle.Ready, Since: 1500 * time.Millisecond},
	} {
		p.observe(e)
	}
	if p.reached() || strings.Contains(out.String(), "/etc/k.yaml") {
		t.Errorf("ready with one component of two: %s", out.String())
	}
	p.observe(lifecycle.Event{Component: "apiserver", State: lifecycle.Ready, Since: 2 * time.Second})
	if !p.reached() {
		t.Error("not ready with both components")
	}
	p.observe(lifecycle.Event{Component: "apiserver", State: lifecycle.Failed, Since: 3 * time.Second, Err: errors.New("secret reason")})
	p.observe(lifecycle.Event{Component: "etcd", State: lifecycle.Stopped})
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	want := []string{"etcd ready 1.50s", "apiserver ready 2.00s", "kubelith ready * kubeconfig: /etc/k.yaml", "apiserver failed 3.00s", "etcd stopped"}
	if len(lines) != len(want) {
		t.Fatalf("%d lines:\n%s", len(lines), out.String())
	}
	for i, line := range lines {
		got := strings.Join(strings.Fields(line), " ")
		before, after, _ := strings.Cut(want[i], "*")
		if !strings.HasPrefix(got, before) || !strings.HasSuffix(got, after) {
			t.Errorf("line %d is %q, want %q", i, got, want[i])
		}
	}
}

// An agent has started without what waits for the server.
func TestProgressOfAgent(t *testing.T) {
	var out bytes.Buffer
	p := newProgress(Output{Progress: &out}, make([]lifecycle.Component, 3), goal{needed: []string{"connection", "kubelet"}, reached: "done"})
	for _, c := range []struct {
		component     string
		reached, done bool
	}{{"connection", false, false}, {"kubelet", true, false}, {"dns", true, true}} {
		p.observe(lifecycle.Event{Component: c.component, State: lifecycle.Ready})
		if p.reached() != c.reached || strings.Contains(out.String(), "done") != c.done {
			t.Errorf("after %s: reached %v, said %q", c.component, p.reached(), out.String())
		}
	}
}

// The file is not touched before it is opened, and then has what was logged meanwhile; the one before is kept.
func TestLogFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "server.log")
	if err := os.WriteFile(name, []byte("old\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		text, _ := os.ReadFile(name)
		return string(text)
	}
	var l logFile
	io.WriteString(&l, "early\n")
	if read(name) != "old\n" {
		t.Errorf("touched too early: %q", read(name))
	}
	if err := l.open(name); err != nil {
		t.Fatal(err)
	}
	io.WriteString(&l, "late\n")
	if read(name) != "early\nlate\n" || read(name+".1") != "old\n" {
		t.Errorf("%q, before it %q", read(name), read(name+".1"))
	}
	if err := (&logFile{}).open(filepath.Join(name, "x")); err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// What an upstream component logs before it exits is why the server ends.
func TestEndInOrder(t *testing.T) {
	exit := klog.OsExit
	defer func() { klog.OsExit = exit }()
	log := logrus.New()
	log.SetOutput(io.Discard)
	last := &lastError{}
	log.AddHook(last)
	ctx, end := context.WithCancelCause(t.Context())
	endInOrder(end, last)
	log.WithField("component", "kubelet").WithField("err", "no such file").Error("Failed to read\nstack")
	log.Warn("later")
	ended := make(chan bool)
	go func() {
		defer close(ended)
		klog.FlushAndExit(0, 1)
		ended <- true
	}()
	if <-ended {
		t.Error("the exit returned")
	}
	want := "an upstream component gave up: kubelet: Failed to read: no such file: the log has what came before"
	if err := context.Cause(ctx); err == nil || err.Error() != want {
		t.Errorf("cause %v, want %s", err, want)
	}
}
