package scheduling

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

// update of the last request that had one.
func update(p *process) *schedulingv1.Update {
	var last *schedulingv1.Update
	for _, r := range p.took() {
		if r, ok := r.(interface{ GetUpdate() *schedulingv1.Update }); ok {
			last = r.GetUpdate()
		}
	}
	return last
}

// TestDeltas: the process is sent what has changed, and everything when it is another one or has lost track.
func TestDeltas(t *testing.T) {
	p := started(t, byZone)
	r := newRig(t, p)
	r.nodes(node("a", "good"), node("b", "good"), node("c", "good"))
	expect := func(what string, changed, removed int, sequence uint64) *schedulingv1.Update {
		t.Helper()
		if _, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj()); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var u *schedulingv1.Update
		for _, request := range p.took() { // the Filter that was answered; Score follows it
			if f, ok := request.(*schedulingv1.FilterRequest); ok {
				u = f.GetUpdate()
			}
		}
		if len(u.GetChanged()) != changed || len(u.GetRemoved()) != removed || u.GetSequence() != sequence {
			t.Errorf("%s: %d nodes changed, %d removed in update %d; want %d, %d in update %d", what, len(u.GetChanged()), len(u.GetRemoved()), u.GetSequence(), changed, removed, sequence)
		}
		return u
	}
	expect("at first", 3, 0, 1)
	expect("nothing has changed", 0, 0, 3)
	r.run(st.MakePod().Name("r").UID("r").Node("b").Req(map[corev1.ResourceName]string{corev1.ResourceMemory: "1Gi"}).Obj())
	u := expect("a pod runs", 1, 0, 5)
	if n := u.GetChanged()[0]; n.GetName() != "b" || n.GetRequested().GetMemory() != 1<<30 || n.GetRequested().GetPods() != 1 {
		t.Errorf("changed node %v, want b with 1 GiB requested by one pod", n)
	}
	r.sched.Cache.RemoveNode(r.logger, node("a", "good"))
	expect("a node is gone", 0, 1, 7)
	r.nodes(node("d", "good"), node("e", "good"))
	u = expect("two are new", 2, 0, 9)
	p.start(t, byZone)
	again := expect("another process", 4, 0, 1)
	if again.GetEpoch() <= u.GetEpoch() {
		t.Errorf("epoch %d after %d", again.GetEpoch(), u.GetEpoch())
	}
	p.start(t, sdk.Scheduling{Filter: byZone.Filter, Needs: &sdk.NodeFields{Labels: true}})
	expect("needs less", 4, 0, 1)
	r.run(st.MakePod().Name("s").UID("s").Node("b").Obj())
	expect("a pod runs that it need not know", 0, 0, 2)
	r.nodes(node("b", "other"))
	u = expect("a label changed", 1, 0, 3)
	if n := u.GetChanged()[0]; n.GetAllocatable() != nil || n.GetRequested() != nil || n.GetLabels()["zone"] != "other" {
		t.Errorf("sent %v, want labels only", n)
	}
}

// TestEpochs: an update that was lost is noticed in the next call, and one that came through although its answer was
// lost is not sent again.
func TestEpochs(t *testing.T) {
	p := started(t, sdk.Scheduling{Filter: byZone.Filter})
	r := newRig(t, p)
	r.nodes(node("a", "good"), node("b", "good"))
	pod := st.MakePod().Name("p").UID("p").Obj()
	schedule := func() {
		t.Helper()
		if _, _, err := r.schedule(pod); err != nil {
			t.Fatal(err)
		}
	}
	schedule()
	if u := update(p); len(u.GetChanged()) != 2 {
		t.Fatalf("first update %v", u)
	}
	r.nodes(node("a", "no"))
	p.lose = func() error { return status.Error(codes.Unavailable, "lost") }
	schedule()
	p.lose = nil
	schedule()
	p.took()
	schedule()
	if u := update(p); len(u.GetChanged()) != 0 || u.GetEpoch() != 1 {
		t.Errorf("after a lost answer %v, want no change in epoch 1", u)
	}
	r.nodes(node("b", "no"))
	p.breakWith(func(string, any) (any, error) { return nil, status.Error(codes.Unavailable, "lost") })
	schedule()
	p.breakWith(nil)
	_, _, err := r.schedule(pod)
	if err == nil {
		t.Error("a pod was scheduled by what the plugin knew before")
	}
	requests := p.took()
	last := requests[len(requests)-1].(*schedulingv1.FilterRequest).GetUpdate()
	if len(requests) != 3 || last.GetEpoch() != 2 || last.GetSequence() != 1 || len(last.GetChanged()) != 2 {
		t.Errorf("%d requests, the last with %v: want one that was lost, one that was refused, one with both nodes in epoch 2", len(requests), last)
	}
}

// TestSnapshotCache: whatever changes and whatever is lost, a plugin that answers has judged the nodes of the
// scheduler's snapshot.
func TestSnapshotCache(t *testing.T) {
	seen := map[string]*sdk.Node{}
	judge := func(_ context.Context, _ *sdk.Pod, n *sdk.Node) string { seen[n.GetName()] = n; return "" }
	p := started(t, sdk.Scheduling{Filter: judge, Needs: &pluginv1.NodeFields{Labels: true, Requested: true, Pods: true}})
	r := newRig(t, p)
	random := rand.New(rand.NewPCG(4, 2))
	nodes, pods := map[string]*corev1.Node{}, map[string]*corev1.Pod{}
	pick := func(n int) string { return fmt.Sprint("n", random.IntN(n)) }
	answered := 0
	for step := range 600 {
		for range random.IntN(4) {
			name := pick(12)
			switch _, there := nodes[name]; {
			case random.IntN(3) == 0 && there:
				r.sched.Cache.RemoveNode(r.logger, nodes[name])
				delete(nodes, name)
			case random.IntN(3) == 0:
				nodes[name] = node(name, fmt.Sprint(step))
				r.sched.Cache.AddNode(r.logger, nodes[name])
			case there:
				id := fmt.Sprint("p", step, random.IntN(1000000))
				pods[id] = st.MakePod().Name(id).UID(id).Node(name).Label("step", fmt.Sprint(step)).Req(map[corev1.ResourceName]string{corev1.ResourceCPU: "1m"}).Obj()
				r.run(pods[id])
			}
			for id, pod := range pods {
				if random.IntN(3) == 0 {
					r.sched.Cache.RemovePod(r.logger, pod)
					delete(pods, id)
				}
				break
			}
		}
		loss := status.Error(codes.Unavailable, "lost")
		switch random.IntN(8) {
		case 0:
			p.breakWith(func(string, any) (any, error) { return nil, loss })
		case 1:
			p.lose = func() error { return loss }
		case 2:
			p.start(t, sdk.Scheduling{Filter: judge, Needs: &pluginv1.NodeFields{Labels: true, Requested: true, Pods: true}})
		}
		clear(seen)
		snapshot := r.snapshot()
		infos, _ := snapshot.NodeInfos().List()
		_, result, _ := r.f.RunPreFilterPlugins(r.ctx, framework.NewCycleState(), st.MakePod().Name("p").UID("p").Obj())
		failed := p.fault != nil || p.lose != nil
		p.breakWith(nil)
		p.lose = nil
		if !result.IsSuccess() {
			t.Fatal(result)
		}
		if failed {
			continue
		}
		answered++
		if len(seen) != len(infos) {
			t.Fatalf("step %d: it judged %d of %d nodes", step, len(seen), len(infos))
		}
		for _, info := range infos {
			want, got := nodeMessage(info, p.Description().GetScheduling().GetNeeds()), seen[info.Node().Name]
			if got == nil {
				t.Fatalf("step %d: it did not judge %s", step, info.Node().Name)
			}
			want.Id = got.GetId()
			if !proto.Equal(want, got) {
				t.Fatalf("step %d: it judged %v, the node is %v", step, got, want)
			}
		}
	}
	if answered < 300 {
		t.Errorf("only %d answers", answered)
	}
}

// TestSomeNodes: a plugin that only scores learns of nodes when they are candidates, and does not keep more than exist.
func TestSomeNodes(t *testing.T) {
	p := started(t, sdk.Scheduling{Score: byZone.Score})
	r := newRig(t, p)
	for i := range 6 {
		r.nodes(node(fmt.Sprint("n", i), "good"))
	}
	schedule := func(skip ...string) *schedulingv1.Update {
		t.Helper()
		pod := st.MakePod().Name("p").UID("p").NodeAffinityNotIn("zone", append(skip, "none")).Obj()
		if _, _, err := r.schedule(pod); err != nil {
			t.Fatal(err)
		}
		return update(p)
	}
	r.nodes(node("n4", "x"), node("n5", "x"))
	if u := schedule("x"); len(u.GetChanged()) != 4 {
		t.Errorf("sent %d nodes, want the 4 candidates", len(u.GetChanged()))
	}
	if u := schedule(); len(u.GetChanged()) != 2 {
		t.Errorf("sent %d nodes, want the 2 that are candidates now", len(u.GetChanged()))
	}
	r.sched.Cache.RemoveNode(r.logger, node("n0", "good"))
	r.sched.Cache.RemoveNode(r.logger, node("n1", "good"))
	if u := schedule("x"); len(u.GetChanged()) != 0 || len(u.GetRemoved()) != 2 {
		t.Errorf("%v, want 2 removed", u)
	}
	r.nodes(node("n6", "good"))
	if u := schedule(); len(u.GetChanged()) != 1 || len(u.GetRemoved()) != 0 {
		t.Errorf("%v, want a new node", u)
	}
}
