package scheduling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/plugins/sdk"
)

// pair lets two pods of a team on a node.
func pair(_ context.Context, pod *sdk.Pod, node *sdk.Node) string {
	team := pod.GetLabels()["team"]
	count := 0
	for _, p := range node.GetPods() {
		if team != "" && p.GetLabels()["team"] == team {
			count++
		}
	}
	if count >= 2 {
		return "two of the team are there"
	}
	return ""
}

var pairs = sdk.Scheduling{Filter: pair, FilterUsesPods: true, Needs: &sdk.NodeFields{Pods: true}}

func member(name string, priority int32, node string) *corev1.Pod {
	return st.MakePod().Name(name).UID(name).Namespace("default").Priority(priority).Label("team", "x").Node(node).
		StartTime(metav1.NewTime(time.Unix(1000, 0))).Obj()
}

// gone are the pods that preemption has deleted, once there are that many.
func (r *rig) gone(want int) []string {
	r.t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var out []string
		for _, a := range r.client.Actions() {
			if d, ok := a.(interface{ GetName() string }); ok && a.GetVerb() == "delete" && a.GetResource().Resource == "pods" {
				out = append(out, d.GetName())
			}
		}
		if len(out) >= want || time.Now().After(deadline) {
			slices.Sort(out)
			return out
		}
	}
}

// TestPreemption: a plugin whose verdict depends on pods is asked for its verdict without some of them; upstream picks
// node and victims.
func TestPreemption(t *testing.T) {
	for _, tc := range []struct {
		name    string
		plugin  sdk.Scheduling
		node    string
		victims []string
		says    string
		asks    bool // about single nodes
	}{
		{name: "uses pods", plugin: pairs, node: "a", victims: []string{"low1"}, asks: true},
		{name: "does not use pods", plugin: sdk.Scheduling{Filter: pair, Needs: pairs.Needs}, says: "two of the team are there"},
		{name: "unresolvable", plugin: sdk.Scheduling{Filter: pair, Needs: pairs.Needs, FilterUsesPods: true, Unresolvable: true}, says: "Preemption is not helpful for scheduling"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := started(t, tc.plugin)
			r := newRig(t, p)
			r.nodes(node("a", ""), node("b", ""), node("c", ""))
			r.run(member("low1", 1, "a"), member("low2", 2, "a"), member("low5", 5, "b"), member("high", 1000, "b"),
				member("high2", 1000, "c"), member("high3", 1000, "c"),
				st.MakePod().Name("other").UID("other").Namespace("default").Priority(0).Node("a").Obj())
			got, status := r.preempt(member("p", 100, ""))
			if got != tc.node || !strings.Contains(status.Message(), tc.says) {
				t.Errorf("node %q, %v; want %q and %q", got, status, tc.node, tc.says)
			}
			if gone := r.gone(len(tc.victims)); !slices.Equal(gone, tc.victims) {
				t.Errorf("victims %v, want %v", gone, tc.victims)
			}
			if asked := requests(p); strings.Contains(asked, "FilterNode") != tc.asks {
				t.Errorf("asked %q", asked)
			}
			// What was tried is not remembered.
			r.schedule(member("q", 0, ""))
			if u := update(p); len(u.GetChanged()) != 0 {
				t.Errorf("after preemption it is sent %v", u)
			}
		})
	}
}

// TestPreemptionAsUpstream: a plugin that judges as NodeResourcesFit does preempts the same pods on the same node, in
// random clusters.
func TestPreemptionAsUpstream(t *testing.T) {
	fit := sdk.Scheduling{
		Filter: func(_ context.Context, pod *sdk.Pod, node *sdk.Node) string {
			if node.GetRequested().GetMilliCpu()+pod.GetRequests().GetMilliCpu() > node.GetAllocatable().GetMilliCpu() {
				return "Insufficient cpu"
			}
			return ""
		},
		FilterUsesPods: true, Needs: &sdk.NodeFields{Allocatable: true, Requested: true},
	}
	without := func() []config.KubeSchedulerProfile {
		defaults, err := latest.Default()
		if err != nil {
			t.Fatal(err)
		}
		set := &defaults.Profiles[0].Plugins.Filter
		set.Disabled = append(set.Disabled, config.Plugin{Name: names.NodeResourcesFit})
		return defaults.Profiles
	}
	preempted := 0
	for seed := range uint64(25) {
		random := rand.New(rand.NewPCG(seed, 7))
		priorities := random.Perm(1000) // no two alike: upstream breaks ties at random
		var nodes []*corev1.Node
		var pods []*corev1.Pod
		cpu := func(milli int) map[corev1.ResourceName]string {
			return map[corev1.ResourceName]string{corev1.ResourceCPU: fmt.Sprintf("%dm", milli)}
		}
		for n := range 2 + random.IntN(4) {
			name := fmt.Sprint("n", n)
			nodes = append(nodes, st.MakeNode().Name(name).Capacity(map[corev1.ResourceName]string{corev1.ResourceCPU: "1", corev1.ResourcePods: "100"}).Obj())
			for free := 1000; free > 350; {
				take := 100 + random.IntN(250)
				free -= take
				id := fmt.Sprint("p", len(pods))
				pods = append(pods, st.MakePod().Name(id).UID(id).Namespace("default").Node(name).Priority(int32(priorities[len(pods)])).Req(cpu(take)).
					StartTime(metav1.NewTime(time.Unix(int64(len(pods)), 0))).Obj())
			}
		}
		pod := st.MakePod().Name("new").UID("new").Namespace("default").Priority(int32(300 + random.IntN(700))).Req(cpu(360 + random.IntN(500))).Obj()
		outcome := func(r *rig) string {
			r.nodes(nodes...)
			r.run(pods...)
			node, status := r.preempt(pod)
			victims := 0
			if node != "" {
				fmt.Sscanf(status.Message(), "preemption: found a potential placement for pod on node "+node+", preempting %d victims", &victims)
				if victims == 0 {
					t.Fatalf("upstream's message has changed: %s", status.Message())
				}
			}
			return fmt.Sprint(node, r.gone(victims))
		}
		upstream := outcome(newRig(t))
		ours := outcome(newRigOf(t, without(), started(t, fit)))
		if upstream != ours {
			t.Errorf("seed %d: upstream preempts %s, with the plugin it is %s", seed, upstream, ours)
		}
		if upstream != "[]" {
			preempted++
		}
	}
	if preempted < 10 {
		t.Errorf("only %d of the clusters preempted anything", preempted)
	}
}

// TestNominated: pods that preemption has made room for count as if they ran.
func TestNominated(t *testing.T) {
	p := started(t, pairs)
	r := newRig(t, p)
	r.nodes(node("a", ""), node("b", ""))
	r.run(member("a1", 0, "a"), member("b1", 0, "b"), member("b2", 0, "b"))
	waiting := member("waiting", 100, "")
	waiting.Status.NominatedNodeName = "a"
	r.know(waiting)
	r.sched.SchedulingQueue.Add(r.ctx, waiting)
	_, _, err := r.schedule(member("p", 10, ""))
	if err == nil || !strings.Contains(err.Error(), "2 two of the team are there") {
		t.Errorf("%v: want no room on a, which is kept for another pod, and none on b", err)
	}
	if asked, want := requests(p), "Filter, FilterNode a"; asked != want {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if got, _, err := r.schedule(member("urgent", 1000, "")); got != "a" || err != nil {
		t.Errorf("a pod of higher priority: node %q, %v; want a", got, err)
	}
}

// TestAssumedInSnapshot: pods of a group are assumed in the snapshot alone, which keeps the node's generation.
func TestAssumedInSnapshot(t *testing.T) {
	p := started(t, pairs)
	r := newRig(t, p)
	r.nodes(node("a", ""))
	r.run(member("a1", 0, "a"))
	snapshot := r.snapshot()
	state := framework.NewCycleState()
	pod := member("p", 0, "")
	if _, status, _ := r.f.RunPreFilterPlugins(r.ctx, state, pod); !status.IsSuccess() {
		t.Fatal(status)
	}
	check := func() *fwk.Status {
		info, err := snapshot.NodeInfos().Get("a")
		if err != nil {
			t.Fatal(err)
		}
		return r.f.RunFilterPlugins(r.ctx, state, pod, info)
	}
	if status := check(); !status.IsSuccess() {
		t.Fatal(status)
	}
	assumed, err := framework.NewPodInfo(member("a2", 0, "a"))
	if err != nil {
		t.Fatal(err)
	}
	if err := snapshot.AssumePod(assumed); err != nil {
		t.Fatal(err)
	}
	if status := check(); status.Code() != fwk.Unschedulable {
		t.Errorf("status %v: the verdict is of before the assumed pod", status)
	}
}
