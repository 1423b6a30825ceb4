package progress

import (
	"bytes"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
)

// A start is over when what it needs is ready: the rest is named, and each part of it when it comes.
func TestProgress(t *testing.T) {
	var out bytes.Buffer
	p := New(&out, []string{"etcd", "apiserver", "dns", "token"},
		Goal{Needed: []string{"etcd", "apiserver"}, Reached: "kubeconfig: /etc/k.yaml", Next: func() string { return "now join\n" }})
	for _, step := range []struct {
		event   lifecycle.Event
		reached bool
		missing string
	}{
		{lifecycle.Event{Component: "etcd", State: lifecycle.Starting}, false, "etcd apiserver dns token"},
		{lifecycle.Event{Component: "etcd", State: lifecycle.Ready, Since: 1500 * time.Millisecond}, false, "apiserver dns token"},
		{lifecycle.Event{Component: "token", State: lifecycle.Ready, Since: time.Second}, false, "apiserver dns"},
		{lifecycle.Event{Component: "apiserver", State: lifecycle.Ready, Since: 2 * time.Second}, true, "dns"},
		{lifecycle.Event{Component: "dns", State: lifecycle.Ready, Since: 9 * time.Second}, true, ""},
		{lifecycle.Event{Component: "apiserver", State: lifecycle.Failed, Since: 3 * time.Second, Err: errors.New("secret reason")}, true, ""},
		{lifecycle.Event{Component: "etcd", State: lifecycle.Stopped}, true, ""},
	} {
		p.Observe(step.event)
		if reached, missing := p.State(); reached != step.reached || strings.Join(missing, " ") != step.missing {
			t.Errorf("after %s %s: reached %v, missing %v", step.event.Component, step.event.State, reached, missing)
		}
	}
	lines := strings.Split(strings.TrimRight(out.String(), "\n"), "\n")
	want := []string{"etcd ready 1.50s", "token ready 1.00s", "apiserver ready 2.00s", "kubelith ready * kubeconfig: /etc/k.yaml", "still starting: dns",
		"dns ready 9.00s", "now join", "apiserver failed 3.00s", "etcd stopped"}
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

// A slow start is reported, at growing intervals and to the service manager too, until nothing is missing.
func TestRemind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out, log bytes.Buffer
		logger := logrus.New()
		logger.SetOutput(&log)
		p := New(&out, []string{"etcd", "dns"}, Goal{Needed: []string{"etcd"}})
		ended := make(chan struct{})
		go func() { p.Remind(t.Context(), logger, &Systemd{}); close(ended) }()
		time.Sleep(31 * time.Second)
		p.Observe(lifecycle.Event{Component: "etcd", State: lifecycle.Ready})
		time.Sleep(time.Minute)
		p.Observe(lifecycle.Event{Component: "dns", State: lifecycle.Ready})
		<-ended
		var reminders []string
		for line := range strings.Lines(out.String()) {
			if strings.HasPrefix(line, "not ready after") {
				reminders = append(reminders, strings.TrimSpace(line))
			}
		}
		if want := []string{"not ready after 30s: etcd, dns", "not ready after 1m30s: dns"}; !slices.Equal(reminders, want) {
			t.Errorf("reminders %q, want %q", reminders, want)
		}
		if n := strings.Count(log.String(), "level=warning"); n != 2 {
			t.Errorf("%d warnings:\n%s", n, log.String())
		}
	})
}

// A slow disk also delays what comes before the components: it is reported, and the service manager waits until after
// the next report.
func TestAwaitStep(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "n")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		logger := logrus.New()
		logger.SetOutput(&log)
		done := AwaitStep(t.Context(), "preparation", nil, logger, &Systemd{socket: socket})
		time.Sleep(100 * time.Second)
		done()
		done()
		if text := log.String(); strings.Count(text, "level=warning") != 2 || !strings.Contains(text, "not ready after 1m30s: preparation") {
			t.Errorf("two warnings were to be logged:\n%s", text)
		}
		time.Sleep(time.Hour)
		if n := strings.Count(log.String(), "\n"); n != 2 {
			t.Errorf("%d lines, after the step was over as well", n)
		}
	})
	buffer := make([]byte, 4096)
	for _, want := range []string{
		"EXTEND_TIMEOUT_USEC=120000000\nSTATUS=starting: preparation",
		"EXTEND_TIMEOUT_USEC=240000000\nSTATUS=starting: preparation",
	} {
		conn.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := conn.Read(buffer); err != nil || string(buffer[:n]) != want {
			t.Errorf("%q, %v, want %q", buffer[:n], err, want)
		}
	}
}
