package nodepatch

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestConditions: only what differs is written, a condition keeps the time of its last transition, and those of others
// stay.
func TestConditions(t *testing.T) {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	before := metav1.NewTime(now.Add(-time.Hour))
	ours := func(t corev1.NodeConditionType) bool { return strings.HasPrefix(string(t), "Ours/") }
	condition := func(name, message string, status corev1.ConditionStatus, at metav1.Time) corev1.NodeCondition {
		return corev1.NodeCondition{Type: corev1.NodeConditionType(name), Status: status, Message: message, LastHeartbeatTime: at, LastTransitionTime: at}
	}
	have := []corev1.NodeCondition{
		condition("Ready", "theirs", corev1.ConditionTrue, before),
		condition("Ours/same", "same", corev1.ConditionTrue, before),
		condition("Ours/text", "old", corev1.ConditionTrue, before),
		condition("Ours/status", "same", corev1.ConditionTrue, before),
		condition("Ours/gone", "", corev1.ConditionTrue, before),
	}
	wanted := []corev1.NodeCondition{
		condition("Ours/same", "same", corev1.ConditionTrue, metav1.Time{}),
		condition("Ours/text", "new", corev1.ConditionTrue, metav1.Time{}),
		condition("Ours/status", "same", corev1.ConditionFalse, metav1.Time{}),
		condition("Ours/new", "new", corev1.ConditionTrue, metav1.Time{}),
	}
	elements := Conditions(have, wanted, now, ours)
	if len(elements) != 4 {
		t.Fatalf("%d elements, want 4: %v", len(elements), elements)
	}

	cs := fake.NewSimpleClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: have}})
	if err := Status(t.Context(), cs, "n", map[string]any{"status": map[string]any{"conditions": elements}}); err != nil {
		t.Fatal(err)
	}
	node, err := cs.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range node.Status.Conditions {
		got[c.Type] = c
	}
	for _, want := range []struct {
		name, message string
		status        corev1.ConditionStatus
		since         metav1.Time
	}{
		{"Ready", "theirs", corev1.ConditionTrue, before},
		{"Ours/same", "same", corev1.ConditionTrue, before},
		{"Ours/text", "new", corev1.ConditionTrue, before},
		{"Ours/status", "same", corev1.ConditionFalse, now},
		{"Ours/new", "new", corev1.ConditionTrue, now},
	} {
		c := got[corev1.NodeConditionType(want.name)]
		if c.Message != want.message || c.Status != want.status || !c.LastTransitionTime.Time.Equal(want.since.Time) {
			t.Errorf("%s: %s %q since %v, want %s %q since %v", want.name, c.Status, c.Message, c.LastTransitionTime, want.status, want.message, want.since)
		}
	}
	if len(got) != 5 {
		t.Errorf("%d conditions, want 5: %v", len(got), got)
	}
	if again := Conditions(node.Status.Conditions, wanted, metav1.Now(), ours); len(again) > 0 {
		t.Errorf("nothing has changed, and yet: %v", again)
	}
}

// TestAnnotate: an annotation is set and removed, and others stay.
func TestAnnotate(t *testing.T) {
	cs := fake.NewSimpleClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"theirs": "x"}}})
	for _, step := range []struct {
		value any
		want  string
		has   bool
	}{{"y", "y", true}, {"", "", true}, {nil, "", false}} {
		if err := Annotate(t.Context(), cs, "n", "ours", step.value); err != nil {
			t.Fatal(err)
		}
		node, err := cs.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, has := node.Annotations["ours"]; got != step.want || has != step.has || node.Annotations["theirs"] != "x" {
			t.Errorf("%v: annotations %v", step.value, node.Annotations)
		}
	}
}
