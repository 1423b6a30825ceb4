package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/trace/record"
)

// rig is upstream's scheduler with its default profile, whose work is recorded.
type rig struct {
	t      testing.TB
	ctx    context.Context
	stop   func()
	sched  *scheduler.Scheduler
	client *fake.Clientset
	pods   informers.SharedInformerFactory
	store  *record.Store
}

const profile = corev1.DefaultSchedulerName

// newRig returns a scheduler for nodes; without record it is upstream's own.
func newRig(t testing.TB, recorded bool, nodes ...*corev1.Node) *rig {
	t.Helper()
	defaults, err := latest.Default()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range defaults.Profiles[0].PluginConfig {
		if args, ok := c.Args.(*config.PodTopologySpreadArgs); ok { // with the default ones, upstream batches nothing
			args.DefaultingType, args.DefaultConstraints = config.ListDefaulting, nil
		}
	}
	r := &rig{t: t, client: fake.NewClientset(), store: record.NewStore(record.Options{})}
	r.ctx, r.stop = context.WithCancel(klog.NewContext(t.Context(), klog.Background()))
	t.Cleanup(r.stop)
	r.pods = informers.NewSharedInformerFactory(r.client, 0)
	r.sched, err = scheduler.New(r.ctx, r.client, r.pods, nil, func(string) events.EventRecorderLogger { return events.NewFakeRecorder(1000) },
		scheduler.WithProfiles(defaults.Profiles...))
	if err != nil {
		t.Fatal(err)
	}
	if recorded {
		recordTo(r.store, r.sched)
	}
	for _, n := range nodes {
		if err := r.client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// run starts the scheduler. A binding is done to the pod.
func (r *rig) run() {
	r.t.Helper()
	r.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(clienttesting.CreateAction).GetObject().(*corev1.Binding)
		pod, err := r.client.Tracker().Get(corev1.SchemeGroupVersion.WithResource("pods"), b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		bound := pod.(*corev1.Pod).DeepCopy()
		bound.Spec.NodeName = b.Target.Name
		return true, b, r.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), bound, b.Namespace)
	})
	r.pods.Start(r.ctx.Done())
	r.pods.WaitForCacheSync(r.ctx.Done())
	if err := r.sched.WaitForHandlersSync(r.ctx); err != nil {
		r.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); r.sched.Run(r.ctx) }()
	r.t.Cleanup(func() { r.stop(); <-ended })
}

func (r *rig) create(pod *corev1.Pod) {
	r.t.Helper()
	if _, err := r.client.CoreV1().Pods(pod.Namespace).Create(r.ctx, pod, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// records waits until a pod has a record of a stage that the test wants, and returns it.
func (r *rig) record(pod string, stage record.Stage, want func(record.Record) bool) record.Record {
	r.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		h, _ := r.store.Get(pod)
		for _, one := range h.Records {
			if one.Stage == stage && want(one) {
				return one
			}
		}
		if time.Now().After(deadline) {
			r.t.Fatalf("%s has %+v", pod, h.Records)
		}
	}
}

func whatever(record.Record) bool { return true }

func node(name, cpu string, labels ...string) *corev1.Node {
	n := st.MakeNode().Name(name).Capacity(map[corev1.ResourceName]string{corev1.ResourceCPU: cpu, corev1.ResourceMemory: "8Gi", corev1.ResourcePods: "100"})
	for _, l := range labels {
		n = n.Label(l, "yes")
	}
	return n.Obj()
}

func pod(name, cpu string) *st.PodWrapper {
	return st.MakePod().Name(name).UID(name).Namespace("default").SchedulerName(profile).Req(map[corev1.ResourceName]string{corev1.ResourceCPU: cpu})
}

func steps(r record.Record) (names []string) {
	for _, s := range r.Steps {
		names = append(names, s.Name)
		if s.Offset < 0 || s.Offset+s.Duration > r.Duration {
			names = append(names, fmt.Sprintf("beyond its record: %+v of %s", s, r.Duration))
		}
	}
	return names
}

// TestRecordScheduled: a pod that finds its node, what the others lack, and how the rest scored.
func TestRecordScheduled(t *testing.T) {
	nodes := []*corev1.Node{node("large", "8", "disk"), node("larger", "16", "disk"), node("small", "1", "disk")}
	for i := range 20 {
		nodes = append(nodes, node(fmt.Sprint("plain-", i), "8"))
	}
	r := newRig(t, true, nodes...)
	r.run()
	r.create(pod("a", "4").NodeSelector(map[string]string{"disk": "yes"}).Obj())
	s := r.record("a", record.Schedule, whatever)
	if want := []string{"prefilter", "filter", "score", "reserve", "permit"}; !slices.Equal(steps(s), want) {
		t.Errorf("steps %q, want %q", steps(s), want)
	}
	if s.Name != "larger" || s.Error != "" || s.Object != (record.Ref{UID: "a", Resource: "pods", Namespace: "default", Name: "a"}) || s.Actor != profile {
		t.Errorf("%+v", s)
	}
	if len(s.Verdicts) != 2 {
		t.Fatalf("verdicts %+v", s.Verdicts)
	}
	if v := s.Verdicts[0]; v.Plugin != "NodeAffinity" || v.Count != 20 || len(v.Nodes) != maxNodes || !strings.Contains(v.Reason, "node affinity/selector") {
		t.Errorf("%+v", v)
	}
	if v := s.Verdicts[1]; v.Plugin != "NodeResourcesFit" || v.Count != 1 || !slices.Equal(v.Nodes, []string{"small"}) || v.Reason != "Insufficient cpu" {
		t.Errorf("%+v", v)
	}
	if len(s.Scores) != 2 || s.Scores[0].Node != "larger" || s.Scores[0].Total <= s.Scores[1].Total {
		t.Fatalf("scores %+v", s.Scores)
	}
	var sum int64
	for v := range maps.Values(s.Scores[0].Plugins) {
		sum += v
	}
	if sum != s.Scores[0].Total {
		t.Errorf("the plugins' scores %v are not %d", s.Scores[0].Plugins, s.Scores[0].Total)
	}
	b := r.record("a", record.Bind, whatever)
	if b.Name != "larger" || b.Error != "" || !slices.Equal(steps(b), []string{"prebind", "bind"}) || b.Start != s.End() {
		t.Errorf("bound: %+v", b)
	}
}

// TestRecordUnschedulable: a pod that fits nowhere, and one that is ruled out before any node is checked.
func TestRecordUnschedulable(t *testing.T) {
	r := newRig(t, true, node("a", "1"), node("b", "1"))
	r.run()
	r.create(pod("big", "4").Obj())
	s := r.record("big", record.Schedule, whatever)
	if s.Name != "" || !strings.HasPrefix(s.Error, "0/2 nodes are available: 2 Insufficient cpu. preemption: 0/2 nodes are available:") {
		t.Errorf("%+v", s)
	}
	if want := []string{"prefilter", "filter", "postfilter"}; !slices.Equal(steps(s), want) {
		t.Errorf("steps %q, want %q", steps(s), want)
	}
	if len(s.Verdicts) != 1 || s.Verdicts[0].Count != 2 || len(s.Scores) != 0 || s.Message != "" {
		t.Errorf("%+v", s)
	}

	r.create(pod("claims", "1").PVC("none").Obj())
	s = r.record("claims", record.Schedule, whatever)
	if !strings.Contains(s.Error, `"none" not found`) || len(s.Verdicts) != 1 || s.Verdicts[0].Count != 2 || s.Verdicts[0].Plugin == "" || s.Steps[0].Error == "" {
		t.Errorf("%+v", s)
	}

	r.create(pod("pinned", "500m").NodeAffinityIn("metadata.name", []string{"b"}, st.NodeSelectorTypeMatchFields).Obj())
	s = r.record("pinned", record.Schedule, whatever)
	if s.Name != "b" || len(s.Verdicts) != 1 || s.Verdicts[0].Plugin != "NodeAffinity" || s.Verdicts[0].Count != 1 {
		t.Errorf("%+v", s)
	}
}

// TestRecordPreemption: preemption runs filters again, which are no verdicts about the pod.
func TestRecordPreemption(t *testing.T) {
	r := newRig(t, true, node("a", "4"), node("tiny", "1"))
	victim := pod("victim", "3").Node("a").Priority(1).StartTime(metav1.Now()).Obj()
	if err := r.client.Tracker().Add(victim); err != nil {
		t.Fatal(err)
	}
	r.run()
	r.create(pod("vip", "3").Priority(100).Obj())
	s := r.record("vip", record.Schedule, func(s record.Record) bool { return s.Error != "" })
	if len(s.Verdicts) != 1 || s.Verdicts[0].Count != 2 || s.Message != "preempts pods on node a, which is nominated" || !slices.Contains(steps(s), "postfilter") {
		t.Errorf("%+v", s)
	}
	r.record("vip", record.Schedule, func(s record.Record) bool { return s.Name == "a" && s.Error == "" })
	r.record("vip", record.Bind, whatever)
}

// TestRecordBinding: a binding that fails, and the next one.
func TestRecordBinding(t *testing.T) {
	r := newRig(t, true, node("a", "4"))
	failed := false
	r.run()
	r.client.PrependReactor("create", "pods", func(a clienttesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" || failed {
			return false, nil, nil
		}
		failed = true
		return true, nil, fmt.Errorf("the test's own error")
	})
	r.create(pod("a", "1").Obj())
	b := r.record("a", record.Bind, whatever)
	if !strings.Contains(b.Error, "the test's own error") || !strings.Contains(b.Steps[len(b.Steps)-1].Error, "own error") {
		t.Errorf("%+v", b)
	}
	r.record("a", record.Bind, func(b record.Record) bool { return b.Error == "" && b.Name == "a" })
}

// TestRecordBatch: pods of one template, most of which take their node from the one before.
func TestRecordBatch(t *testing.T) {
	var nodes []*corev1.Node
	for i := range 10 {
		nodes = append(nodes, node(fmt.Sprint("n", i), "8"))
	}
	r := newRig(t, true, nodes...)
	r.run()
	for i := range 10 {
		r.create(pod(fmt.Sprint("p", i), "5").Label("app", "a").Obj())
	}
	taken, batched := map[string]bool{}, 0
	for i := range 10 {
		s := r.record(fmt.Sprint("p", i), record.Schedule, func(s record.Record) bool { return s.Error == "" })
		b := r.record(fmt.Sprint("p", i), record.Bind, whatever)
		if s.Name == "" || b.Name != s.Name || taken[s.Name] {
			t.Errorf("%+v, %+v", s, b)
		}
		taken[s.Name] = true
		if s.Message == "tried this node first" {
			batched++
			if len(s.Scores) > 0 || len(s.Verdicts) > 0 {
				t.Errorf("batched: %+v", s)
			}
		}
		n := 0
		for _, v := range s.Verdicts {
			n += v.Count
		}
		if n > i {
			t.Errorf("p%d was kept from %d nodes, %d are full: %+v", i, n, i, s.Verdicts)
		}
	}
	if batched == 0 {
		t.Error("no pod was batched")
	}
}

// TestVerdicts: many reasons become few.
func TestVerdicts(t *testing.T) {
	r, a := &recorder{rejected: make([]rejection, 101)}, &attempt{hint: "n0"}
	r.rejected[0] = rejection{"n0", fwk.NewStatus(fwk.Unschedulable, "twice").WithPlugin("p")}
	for i := range 100 {
		r.rejected[i+1] = rejection{fmt.Sprint("n", i), fwk.NewStatus(fwk.Unschedulable, fmt.Sprint("reason ", i)).WithPlugin("p")}
	}
	a.n.Store(101)
	r.verdicts(a)
	n := 0
	for _, v := range a.record.Verdicts {
		n += v.Count
	}
	if n != 100 || len(a.record.Verdicts) != maxVerdicts || a.record.Verdicts[0].Reason != "other reasons" {
		t.Errorf("%d nodes: %+v", n, a.record.Verdicts)
	}
	if r.rejected[0].status != nil || r.rejected[100].status != nil {
		t.Error("nodes are kept")
	}
}

// BenchmarkSchedule is one attempt among 1,000 nodes, with the recorder and without: with a tenth that fit, and none.
func BenchmarkSchedule(b *testing.B) {
	var nodes []*corev1.Node
	for i := range 1000 {
		cpu := "1"
		if i%10 == 0 {
			cpu = "64"
		}
		nodes = append(nodes, node(fmt.Sprint("n", i), cpu))
	}
	for _, cpu := range []string{"4", "100"} {
		for _, recorded := range []bool{false, true} {
			b.Run(fmt.Sprintf("fits=%v/recorded=%v", cpu == "4", recorded), func(b *testing.B) {
				r := newRig(b, recorded)
				logger := klog.Background()
				for _, n := range nodes {
					r.sched.Cache.AddNode(logger, n)
				}
				f := r.sched.Profiles[profile]
				if err := r.sched.Cache.UpdateSnapshot(logger, f.SnapshotSharedLister().(*cache.Snapshot)); err != nil {
					b.Fatal(err)
				}
				pods := make([]*framework.PodInfo, 1000)
				for i := range pods {
					p := pod(fmt.Sprint("p", i), cpu).Obj()
					if err := r.pods.Core().V1().Pods().Informer().GetStore().Add(p); err != nil { // preemption reads it
						b.Fatal(err)
					}
					var err error
					if pods[i], err = framework.NewPodInfo(p); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					info, state := pods[i%len(pods)], framework.NewCycleState()
					i++
					result, err := r.sched.SchedulePod(r.ctx, f, state, &framework.QueuedPodInfo{PodInfo: info})
					if fit, ok := err.(*framework.FitError); ok {
						f.RunPostFilterPlugins(r.ctx, state, info.Pod, fit.Diagnosis.NodeToStatus)
					} else {
						f.RunReservePluginsReserve(r.ctx, state, info.Pod, result.SuggestedHost)
						f.RunPermitPlugins(r.ctx, state, info.Pod, result.SuggestedHost)
						f.RunReservePluginsUnreserve(r.ctx, state, info.Pod, result.SuggestedHost)
					}
				}
			})
		}
	}
}
