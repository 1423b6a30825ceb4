package status

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func event(component string, state lifecycle.State, abandoned int, err error) lifecycle.Event {
	return lifecycle.Event{Component: component, State: state, Err: err, Next: time.Second, Abandoned: abandoned}
}

// TestCondition follows a component through its failures.
func TestCondition(t *testing.T) {
	o := NewObserver()
	for i, step := range []struct {
		event            lifecycle.Event
		status           corev1.ConditionStatus
		reason, contains string
		news             string
	}{
		{event("dns", lifecycle.Starting, 0, nil), corev1.ConditionTrue, ComponentsReady, "every component", ""},
		{event("dns", lifecycle.Ready, 0, nil), corev1.ConditionTrue, ComponentsReady, "", ""},
		{event("dns", lifecycle.BackingOff, 0, errors.New("panic: ouch\nand a stack")), corev1.ConditionFalse, ComponentFailed, "dns: panic: ouch", "dns: panic: ouch: restarting in 1s"},
		{event("dns", lifecycle.Starting, 0, nil), corev1.ConditionFalse, ComponentFailed, "dns: panic: ouch", ""},
		{event("token", lifecycle.Ending, 0, errors.New("hangs")), corev1.ConditionFalse, ComponentFailed, "dns: panic: ouch; token: hangs", ""},
		{event("dns", lifecycle.Ready, 0, nil), corev1.ConditionFalse, ComponentFailed, "token: hangs", "dns: ready again"},
		{event("token", lifecycle.BackingOff, 1, errors.New("hangs, too late")), corev1.ConditionFalse, ComponentFailed, "token: hangs, too late", "token: hangs, too late: restarting"},
		{event("token", lifecycle.Ready, 1, nil), corev1.ConditionTrue, ComponentAbandoned, "token (1)", "token: ready again"},
		{event("token", lifecycle.Returned, 0, nil), corev1.ConditionTrue, ComponentsReady, "every component of kubelith is running", ""},
	} {
		o.Observe(step.event)
		c := o.conditions()[0]
		if c.Status != step.status || c.Reason != step.reason || !strings.Contains(c.Message, step.contains) || strings.Contains(c.Message, "\n") {
			t.Errorf("step %d: %s %s %q", i, c.Status, c.Reason, c.Message)
		}
		if news := fmt.Sprint(o.take()); !strings.Contains(news, step.news) || step.news == "" && news != "[]" {
			t.Errorf("step %d: news %s, want %q", i, news, step.news)
		}
	}
	want := `
# HELP kubelith_component_abandoned_runs Earlier runs of the component that were abandoned because they did not return when stopped.
# TYPE kubelith_component_abandoned_runs gauge
kubelith_component_abandoned_runs{component="dns"} 0
kubelith_component_abandoned_runs{component="token"} 0
# HELP kubelith_component_restarts_total Restarts of the component in this process because it failed, panicked or hung.
# TYPE kubelith_component_restarts_total counter
kubelith_component_restarts_total{component="dns"} 1
kubelith_component_restarts_total{component="token"} 1
# HELP kubelith_component_up 1 when the component is ready, else 0.
# TYPE kubelith_component_up gauge
kubelith_component_up{component="dns"} 1
kubelith_component_up{component="token"} 1
`
	if err := testutil.CollectAndCompare(o, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// TestRun: the Node gets the condition beside those that it has, and Events say what happened.
func TestRun(t *testing.T) {
	old := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	cs := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{old}}})
	log, hook := logtest.NewNullLogger()
	o := NewObserver()
	s := New(Options{Observer: o, NodeName: "n1", Log: log})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx, cs, func() {}) }()

	wait := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("no %s: %v", what, hook.LastEntry())
			}
		}
	}
	condition := func(status corev1.ConditionStatus, message string) func() bool {
		return func() bool {
			node, err := cs.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			has := map[corev1.NodeConditionType]corev1.NodeCondition{}
			for _, c := range node.Status.Conditions {
				has[c.Type] = c
			}
			ours := has[Condition]
			return len(has) == 2 && has[corev1.NodeReady].Reason == old.Reason && ours.Status == status && strings.Contains(ours.Message, message)
		}
	}
	wait("condition at first", condition(corev1.ConditionTrue, ""))
	o.Observe(event("dns", lifecycle.BackingOff, 0, errors.New("panic: ouch")))
	wait("condition of a failure", condition(corev1.ConditionFalse, "dns: panic: ouch"))
	o.Observe(event("dns", lifecycle.Ready, 0, nil))
	wait("condition of a recovery", condition(corev1.ConditionTrue, "every"))
	wait("Events", func() bool {
		events, err := cs.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		reasons := map[string]bool{}
		for _, e := range events.Items {
			reasons[e.Type+" "+e.Reason] = e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == "n1"
		}
		return reasons["Warning "+ComponentFailed] && reasons["Normal "+ComponentRestarted]
	})
	policies := func(want corev1.ConditionStatus) func() bool {
		return func() bool {
			node, err := cs.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var has corev1.ConditionStatus
			for _, c := range node.Status.Conditions {
				if c.Type == names.PolicyCondition {
					has = c.Status
				}
			}
			return has == want && len(node.Status.Conditions) >= 2
		}
	}
	o.Policies(corev1.ConditionFalse, "Disabled", "why")
	wait("condition of policies", policies(corev1.ConditionFalse))
	o.Policies(corev1.ConditionTrue, "Enforced", "")
	wait("changed condition of policies", policies(corev1.ConditionTrue))
	o.Policies("", "", "")
	wait("end of the condition of policies", policies(""))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// TestClaims: the Node claims the external addresses of the settings, and no others; a server's also names its API.
func TestClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		has      string // empty: no annotation
		external []string
		want     map[string]any
	}{
		"none":      {"", nil, nil},
		"new":       {"", []string{"203.0.113.1", "2001:db8::1"}, map[string]any{"kubelith.io/external-ip": "203.0.113.1,2001:db8::1"}},
		"unchanged": {"203.0.113.1", []string{"203.0.113.1"}, nil},
		"changed":   {"203.0.113.1", []string{"203.0.113.2"}, map[string]any{"kubelith.io/external-ip": "203.0.113.2"}},
		"no more":   {"203.0.113.1", nil, map[string]any{"kubelith.io/external-ip": nil}},
	} {
		have := map[string]string{"a": "b"}
		if tc.has != "" {
			have[names.ExternalIPAnnotation] = tc.has
		}
		if got := claims(have, Options{External: tc.external}); !maps.Equal(got, tc.want) {
			t.Errorf("%s: %v, want %v", name, got, tc.want)
		}
		have[names.APINamesAnnotation] = "192.0.2.1,old.example"
		want := map[string]any{names.APINamesAnnotation: "192.0.2.1,api.example"}
		maps.Copy(want, tc.want)
		if got := claims(have, Options{External: tc.external, APINames: []string{"192.0.2.1", "api.example"}}); !maps.Equal(got, want) {
			t.Errorf("%s, on a server: %v, want %v", name, got, want)
		}
	}
}
