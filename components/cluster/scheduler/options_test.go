package scheduler

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// What a file sets and the composition would ignore is refused.
func TestConfigFile(t *testing.T) {
	for text, want := range map[string]string{
		"parallelism: 3\n":                                     "",
		"leaderElection: {leaderElect: false}\n":               "",
		"clientConnection: {qps: 7}\n":                         "clientConnection: cannot be set",
		"leaderElection: {resourceName: other}\n":              "leaderElection: cannot be set",
		"delayCacheUntilActive: true\n":                        "delayCacheUntilActive: cannot be set",
		"profiles: [{schedulerName: a}, {schedulerName: b}]\n": "",
	} {
		file := filepath.Join(t.TempDir(), "scheduler.yaml")
		if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(Options{Args: []string{"config=" + file}})
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: error %v, want %q", text, err, want)
		}
	}
}

// TestArgs: arguments count, one that would have no effect is refused, and there is neither an election nor a port.
func TestArgs(t *testing.T) {
	s, err := New(Options{Args: []string{"pod-max-in-unschedulable-pods-duration=7m"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Upstream().Deprecated.PodMaxInUnschedulablePodsDuration; got != 7*time.Minute {
		t.Errorf("pods are tried again after %s", got)
	}
	if s.config.LeaderElection.LeaderElect || s.Upstream().SecureServing.BindPort != 0 {
		t.Errorf("election: %v, port: %d", s.config.LeaderElection.LeaderElect, s.Upstream().SecureServing.BindPort)
	}
	for arg, want := range map[string]string{
		"leader-elect=true":    "leader-elect",
		"kubeconfig=/etc/x":    "kubeconfig",
		"write-config-to=/x":   "does not end",
		"no-such-flag=1":       "no-such-flag",
		"config=/no/such/file": "/no/such/file",
	} {
		if _, err := New(Options{Args: []string{arg}}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--scheduler-arg") {
			t.Errorf("%s: %v", arg, err)
		}
	}
}

// TestHealth: a pod whose scheduling does not end is reported, waiting for the next pod is not, and the next run starts
// fresh.
func TestHealth(t *testing.T) {
	s := &Server{}
	s.work.Limit = time.Nanosecond
	asked, came := make(chan struct{}), make(chan struct{})
	next := s.watched(func(klog.Logger) (framework.QueuedEntityInfo, error) {
		asked <- struct{}{}
		<-came
		return nil, errors.New("closed")
	})
	taken := make(chan struct{})
	take := func() {
		go func() {
			next(klog.Background())
			taken <- struct{}{}
		}()
		<-asked
		if err := s.Healthy(context.Background()); err != nil {
			t.Errorf("while it waits for a pod: %v", err)
		}
		came <- struct{}{}
		<-taken
		time.Sleep(time.Millisecond) // longer than the limit
	}
	take()
	if err := s.Healthy(context.Background()); err == nil || !strings.Contains(err.Error(), "scheduling a pod") {
		t.Errorf("while a pod is scheduled: %v", err)
	}
	take()
	s.work.Reset()
	if err := s.Healthy(context.Background()); err != nil {
		t.Errorf("in the next run: %v", err)
	}
}
