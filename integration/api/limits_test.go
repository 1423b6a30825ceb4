package api

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestUpstreamArguments: what was given with --apiserver-arg is in effect.
func TestUpstreamArguments(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	metrics := s.Kubectl(t, "get", "--raw=/metrics")
	if !strings.Contains(metrics, `kubernetes_feature_enabled{name="APIServerWebhookAuthenticationToken",stage="ALPHA"} 1`) {
		t.Errorf("the metrics do not say that the feature gate is on, only %q", regexp.MustCompile(`(?m)^kubernetes_feature_enabled.*WebhookAuth.*$`).FindAllString(metrics, -1))
	}
	if pods := s.Kubectl(t, "get", "nodes", "-o", "jsonpath={.items[0].status.capacity.pods}"); pods != "77" {
		t.Errorf("the node takes %s pods", pods)
	}
	ns := s.Namespace(t)
	s.Run(t, sleeper(ns, "a"))
	harness.Eventually(t, 20*time.Second, "the lease of an Event", func() error {
		events, err := etcd(t, s).Get(t.Context(), "/registry/events/"+ns+"/", withPrefix()...)
		if err != nil {
			return err
		}
		if len(events.Kvs) == 0 {
			return fmt.Errorf("no Event yet")
		}
		ttl, err := etcd(t, s).TimeToLive(t.Context(), leaseOf(events.Kvs[0]))
		if err == nil && (ttl.GrantedTTL < 20*60 || ttl.GrantedTTL > 23*60) {
			err = harness.Permanent(fmt.Errorf("Events live %d s, wanted 20 min", ttl.GrantedTTL))
		}
		return err
	})
}

// TestMutationDetector: the suite runs with the detector of changes to shared cache objects switched on.
func TestMutationDetector(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	environ := readEnviron(t, s.PID())
	if !strings.Contains(environ, "\x00"+harness.DetectMutations+"\x00") {
		t.Errorf("the server's environment has no %s", harness.DetectMutations)
	}
	if !strings.Contains(s.Logs(), "Mutation detector is enabled") {
		t.Error("the server's log does not say that the mutation detector is on")
	}
}
