package scheduling

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/sdk"
)

// forbids refuses pods with this label.
func forbids(label string) sdk.Scheduling {
	return sdk.Scheduling{Filter: func(_ context.Context, pod *sdk.Pod, _ *sdk.Node) string {
		if _, ok := pod.GetLabels()[label]; ok {
			return "not now"
		}
		return ""
	}}
}

// queue hands a pod to the scheduler's queue and has it tried.
func (r *rig) queue(pod *corev1.Pod) {
	r.t.Helper()
	pod.Spec.SchedulerName = corev1.DefaultSchedulerName
	r.know(pod)
	r.sched.SchedulingQueue.Add(r.ctx, pod)
	r.try()
}

// try has the next pod of the queue tried.
func (r *rig) try() {
	r.t.Helper()
	if len(r.sched.SchedulingQueue.PodsInActiveQ()) == 0 {
		r.t.Fatal("no pod is to be tried")
	}
	r.sched.ScheduleOne(r.ctx)
}

// waiting are the pods that wait for something to change, and those that are to be tried.
func (r *rig) waiting() (refused, next []string) {
	names := func(pods ...*corev1.Pod) []string {
		var out []string
		for _, p := range pods {
			out = append(out, p.Name)
		}
		slices.Sort(out)
		return out
	}
	q := r.sched.SchedulingQueue
	return names(q.UnschedulablePods()...), names(slices.Concat(q.PodsInActiveQ(), q.PodsInBackoffQ())...)
}

func (r *rig) expect(when string, refused, next []string) {
	r.t.Helper()
	if gotRefused, gotNext := r.waiting(); !slices.Equal(gotRefused, refused) || !slices.Equal(gotNext, next) {
		r.t.Errorf("%s: pods %v wait and %v are tried, want %v and %v", when, gotRefused, gotNext, refused, next)
	}
}

// TestTriedAgain: pods that a plugin has refused are tried again when another process of it serves, or when it is
// removed. Those that others have refused are not.
func TestTriedAgain(t *testing.T) {
	p := started(t, forbids("x"))
	r := newRig(t, p)
	r.nodes(node("a", "good"))
	r.queue(st.MakePod().Name("ours").Namespace("ns").UID("ours").Label("x", "").Obj())
	r.queue(st.MakePod().Name("others").Namespace("ns").UID("others").NodeSelector(map[string]string{"zone": "moon"}).Obj())
	both := []string{"others", "ours"}
	r.expect("at first", both, nil)
	r.set.Replace(p) // the process that has refused it
	r.set.Replace(p)
	r.expect("when something else has changed", both, nil)

	p.Kill()
	r.set.Replace(p)
	r.expect("without a process", both, nil)
	p.start(t, forbids("x"))
	r.set.Replace(p)
	r.expect("another process serves", []string{"others"}, []string{"ours"})
	r.try()
	r.expect("which refuses it too", both, nil)

	r.set.Replace()
	r.expect("the plugin is removed", []string{"others"}, []string{"ours"})
	r.set.Replace(p)
	r.try()
	r.expect("it is put back", both, nil)
}

// TestTriedAgainInFlight: a refusal of a process that is replaced before the queue has heard of it is not kept.
func TestTriedAgainInFlight(t *testing.T) {
	p := started(t, forbids("x"))
	r := newRig(t, p)
	r.nodes(node("a", "good"))
	p.breakWith(func(string, any) (any, error) {
		p.start(t, forbids("y"))
		r.set.Replace(p)
		return nil, nil
	})
	r.queue(st.MakePod().Name("p").Namespace("ns").UID("p").Label("x", "").Obj())
	r.expect("refused by a process that is gone", nil, []string{"p"})
}

// TestMustAnswer: a pod that no call could be made for does not wait for the end of its pause when the plugin is back.
func TestMustAnswer(t *testing.T) {
	p := started(t, forbids("x"))
	p.SetSettings(plugins.Settings{FailurePolicy: "Fail", Timeout: patient})
	p.Kill()
	r := newRig(t, p)
	r.nodes(node("a", "good"))
	r.queue(st.MakePod().Name("p").Namespace("ns").UID("p").Obj())
	if pausing := r.sched.SchedulingQueue.PodsInBackoffQ(); len(pausing) != 1 {
		t.Fatalf("%d pods pause, want one", len(pausing))
	}
	p.start(t, forbids("x"))
	r.set.Replace(p)
	if ready := r.sched.SchedulingQueue.PodsInActiveQ(); len(ready) != 1 {
		t.Errorf("%d pods are tried at once, want one", len(ready))
	}
}

// TestWaitingIsBounded: pods that are gone or have a node are forgotten.
func TestWaitingIsBounded(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	store, known := factory.Core().V1().Pods().Informer().GetStore(), factory.Core().V1().Pods().Lister()
	w := waiting{known: known}
	for i := range 10 * minSweep {
		name := fmt.Sprint("p", i)
		pod := st.MakePod().Name(name).Namespace("ns").UID(name).Obj()
		switch {
		case i < 10:
			store.Add(pod)
		case i%2 == 0:
			bound := pod.DeepCopy()
			bound.Spec.NodeName = "a"
			store.Add(bound)
		}
		w.add(pod)
	}
	if n := len(w.pods); n > minSweep {
		t.Errorf("it keeps %d pods", n)
	}
	if n := len(w.take()); n != 10 {
		t.Errorf("%d pods are tried again, want the 10 without a node", n)
	}
	if n := len(w.take()); n != 0 {
		t.Errorf("%d pods are tried a second time", n)
	}
}
