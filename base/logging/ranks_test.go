package logging

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

func TestRanks(t *testing.T) {
	log, lines := capture(t, "text", "info")
	for name, tc := range map[string]struct {
		component, message, err string
		want                    string
	}{
		"matched by its message":   {"etcd", "simple token is not cryptographically signed", "", ""},
		"a lower level that shows": {"apiserver", "Resetting endpoints for master service x", "", "info  component=apiserver Resetting endpoints for master service x"},
		"another component":        {"kubelet", "simple token is not cryptographically signed", "", "error component=kubelet simple token is not cryptographically signed"},
		"another error":            {"kubelet", "Failed to read data from checkpoint", "disk", `error component=kubelet Failed to read data from checkpoint err=disk`},
		"the error that passes":    {"kubelet", "Failed to read data from checkpoint", "checkpoint is not found", ``},
		"an error of any":          {"kubelet", "Waiting for caches to sync", "", "error component=kubelet Waiting for caches to sync"},
		"after an id":              {"etcd", "8e9e05c52164694d cannot campaign at term 1 since there are still pending configuration changes to apply", "", ""},
		"the error in the message": {"kubelet", "Error while processing event (&{Mask:1073742080 Cookie:0 Name:/sys/fs/cgroup/cpu/kubepods/a}): inotify_add_watch /sys/fs/cgroup/cpu/kubepods/a: no such file or directory", "", ""},
		"another in the message":   {"kubelet", "Error while processing event (&{}): inotify_add_watch /a: no space left on device", "", "error component=kubelet Error while processing event (&{}): inotify_add_watch /a: no space left on device"},
		"a task that is gone":      {"kubelet", "Failed to process watch event {EventType:0 Name:/kubepods/a WatchSource:0}: not found: rpc error: code = NotFound desc = task 8860 not found", "", ""},
		"a watch that we ended":    {"kubernetes", "Failed to watch", `Get "https://127.0.0.1:6443/api/v1/pods?watch=true": context canceled`, ""},
		"a watch that failed":      {"kubernetes", "Failed to watch", "connection refused", `error component=kubernetes Failed to watch err="connection refused"`},
		"not at the beginning":     {"etcd", "oh: simple token is not cryptographically signed", "", "error component=etcd oh: simple token is not cryptographically signed"},
	} {
		t.Run(name, func(t *testing.T) {
			e := Component(log, tc.component)
			if tc.err != "" {
				e = e.WithField("err", errors.New(tc.err))
			}
			e.Error(tc.message)
			if got := strings.Join(lines(), "\n"); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
	// Each row lowers the level, and matches more than a word.
	for _, r := range upstreamRanks {
		if r.level < logrus.InfoLevel || len(r.message)+len(r.err) < 5 {
			t.Errorf("%+v", r)
		}
	}
}

// A line that should stop soon and does not keeps its own level.
func TestPassing(t *testing.T) {
	line := said{component: "kubelet", message: "Error updating node status, will retry", err: `node "a" not found`}
	var r ranks
	start := time.Now()
	for _, step := range []struct {
		after time.Duration
		want  logrus.Level
	}{
		{0, logrus.DebugLevel},
		{passingFor / 2, logrus.DebugLevel},
		{passingFor, logrus.DebugLevel},
		{passingFor + time.Second, logrus.ErrorLevel},
		{2 * passingFor, logrus.ErrorLevel},
		{4 * passingFor, logrus.DebugLevel}, // another time
	} {
		if got := r.level(line, logrus.ErrorLevel, start.Add(step.after)); got != step.want {
			t.Errorf("after %s: %s, want %s", step.after, got, step.want)
		}
	}
}

func TestFloods(t *testing.T) {
	log, lines := capture(t, "text", "info")
	e := Component(log, "etcd")
	for i := range 1000 {
		e.WithField("n", i).Warnf("failed to publish %d", i)
		e.Info("an information")
	}
	e.Warn("another")
	Component(log, "plugins").Warn("failed to publish 1")
	warnings := 0
	for _, l := range lines() {
		if strings.Contains(l, "failed to publish") {
			warnings++
		}
	}
	if warnings != floodLines+1 {
		t.Errorf("%d warnings, want %d of etcd and one of a plugin", warnings, floodLines)
	}

	var f floods
	start := time.Now()
	for i, step := range []struct {
		message string
		after   time.Duration
		want    string
	}{
		{"apply request took too long", 0, "apply request took too long"},
		{"apply request took too long", floodTime, ""},
		{"leader failed to send out heartbeat on time; took too long", slowTime, "leader failed to send out heartbeat on time; took too long"},
		{"leader failed to send out heartbeat on time; took too long", slowTime + floodTime, ""},
		{"apply request took too long", slowTime, "apply request took too long (and 1 lines like this in between)"},
		{"else", 0, "else"},
	} {
		got, ok := f.shorten(said{component: "etcd", message: step.message}, logrus.WarnLevel, start.Add(step.after))
		if got != step.want || ok != (step.want != "") {
			t.Errorf("line %d: %q, %v", i, got, ok)
		}
	}
	for i := range 3 * floodsKnown {
		f.shorten(said{component: "etcd", message: strings.Repeat("x", i)}, logrus.WarnLevel, start)
	}
	if len(f.seen) > floodsKnown {
		t.Errorf("%d lines are remembered", len(f.seen))
	}
}
