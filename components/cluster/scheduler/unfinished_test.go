package scheduler

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/kubernetes/pkg/scheduler"
)

// TestUnfinished: the view shows those pods that upstream's informer selects.
func TestUnfinished(t *testing.T) {
	cs := fake.NewClientset()
	selectors := make(chan fields.Selector, 1)
	cs.PrependReactor("list", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		select {
		case selectors <- action.(clienttesting.ListAction).GetListRestrictions().Fields:
		default:
		}
		return false, nil, nil
	})
	factory := scheduler.NewInformerFactory(cs, 0, nil)
	factory.Core().V1().Pods().Informer()
	factory.StartWithContext(t.Context())
	var selector fields.Selector
	select {
	case selector = <-selectors:
	case <-time.After(10 * time.Second):
		t.Fatal("upstream's informer lists no pods")
	}
	for _, r := range selector.Requirements() {
		if r.Field != "status.phase" {
			t.Errorf("upstream selects by %s", r.Field)
		}
	}
	for _, phase := range []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
		want := selector.Matches(fields.Set{"status.phase": string(phase)})
		if got := unfinished(&corev1.Pod{Status: corev1.PodStatus{Phase: phase}}); got != want {
			t.Errorf("phase %q: %v, want %v", phase, got, want)
		}
	}
}
