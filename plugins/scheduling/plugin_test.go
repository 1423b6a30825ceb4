package scheduling

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/plugins"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
	"kubelith.io/kubelith/plugins/sdk"
)

var room = map[corev1.ResourceName]string{corev1.ResourceCPU: "8", corev1.ResourceMemory: "8Gi", corev1.ResourcePods: "100"}

// node with a label zone.
func node(name, zone string) *corev1.Node {
	return st.MakeNode().Name(name).Label("zone", zone).Capacity(room).Obj()
}

// byZone refuses nodes of zone "no" and prefers zone "best".
var byZone = sdk.Scheduling{
	Filter: func(_ context.Context, pod *sdk.Pod, node *sdk.Node) string {
		if node.GetLabels()["zone"] == "no" && pod.GetLabels()["anywhere"] == "" {
			return "wrong zone"
		}
		return ""
	},
	Score: func(_ context.Context, _ *sdk.Pod, node *sdk.Node) int {
		if node.GetLabels()["zone"] == "best" {
			return 100
		}
		return 0
	},
	Weight: 100, // above all of upstream's together
}

func started(t *testing.T, s sdk.Scheduling) *process {
	t.Helper()
	p := newProcess("zones")
	p.start(t, s)
	return p
}

// requests are those to filter or score all nodes, in words.
func requests(p *process) string {
	var out []string
	for _, r := range p.took() {
		switch r := r.(type) {
		case *schedulingv1.FilterRequest:
			out = append(out, "Filter")
		case *schedulingv1.FilterNodeRequest:
			out = append(out, "FilterNode "+r.GetNode().GetName())
		case *schedulingv1.ScoreRequest:
			out = append(out, fmt.Sprintf("Score %d", len(r.GetNodes())))
		}
	}
	return strings.Join(out, ", ")
}

// TestFilterAndScore: the plugin's verdicts and scores decide, in one call for each, among upstream's.
func TestFilterAndScore(t *testing.T) {
	p := started(t, byZone)
	r := newRig(t, p)
	r.nodes(node("a", "no"), node("b", "good"), node("c", "best"), node("d", "good"), st.MakeNode().Name("e").Label("zone", "best").Capacity(room).Unschedulable(true).Obj())
	got, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj())
	if err != nil || got != "c" {
		t.Fatalf("node %q, %v; want c", got, err)
	}
	if asked, want := requests(p), "Filter, Score 3"; asked != want {
		t.Errorf("asked %q, want %q", asked, want)
	}
	// A pod of another message gets other verdicts.
	r.nodes(node("c", "no"), node("b", "no"), node("d", "no"))
	_, _, err = r.schedule(st.MakePod().Name("q").UID("q").Obj())
	if err == nil || !strings.Contains(err.Error(), "4 wrong zone") {
		t.Errorf("error %v, want 4 nodes of the wrong zone", err)
	}
	if _, _, err := r.schedule(st.MakePod().Name("q").UID("q").Label("anywhere", "yes").Obj()); err != nil {
		t.Error(err)
	}
}

// TestWithdrawn: what a plugin does not do is not requested, and nothing of a plugin that the operator has removed.
func TestWithdrawn(t *testing.T) {
	p := started(t, sdk.Scheduling{Score: byZone.Score})
	r := newRig(t, p)
	r.nodes(node("a", "best"), node("b", "good"))
	pod := st.MakePod().Name("p").UID("p").Obj()
	if _, _, err := r.schedule(pod); err != nil {
		t.Fatal(err)
	}
	if asked, want := requests(p), "Score 2"; asked != want {
		t.Errorf("a plugin without Filter was asked %q, want %q", asked, want)
	}
	p.start(t, sdk.Scheduling{Filter: byZone.Filter, MustAnswer: true})
	if _, _, err := r.schedule(pod); err != nil {
		t.Fatal(err)
	}
	if asked, want := requests(p), "Filter"; asked != want {
		t.Errorf("a plugin without Score was asked %q, want %q", asked, want)
	}
	r.set.Replace()
	if _, _, err := r.schedule(pod); err != nil {
		t.Fatal(err)
	}
	late := newProcess("late")
	r.set.Replace(p, late)
	r.set.Replace(p, late)
	if _, _, err := r.schedule(pod); err != nil {
		t.Fatal(err)
	}
	if asked, want := requests(p), "Filter"; asked != want {
		t.Errorf("removed and put back it was asked %q, want %q", asked, want)
	}
	if lines := r.lines.AllEntries(); len(lines) != 1 || lines[0].Data["plugin"] != "late" {
		t.Errorf("lines %v, want one about the plugin that came later", lines)
	}
}

// TestFaults: for each way to fail there is the policy, at once, and one line.
func TestFaults(t *testing.T) {
	answer := func(method string, answer any) func(string, any) (any, error) {
		return func(m string, _ any) (any, error) {
			if m == method {
				return answer, nil
			}
			return nil, nil
		}
	}
	fails := func(c codes.Code, text string) func(string, any) (any, error) {
		return func(string, any) (any, error) { return nil, status.Error(c, text) }
	}
	hang := make(chan struct{})
	defer close(hang)
	for _, tc := range []struct {
		name  string
		fault func(string, any) (any, error)
		says  string
	}{
		{"error", fails(codes.Unknown, "no metrics"), "no metrics"},
		{"crash", fails(codes.Unavailable, "connection closed"), "connection closed"},
		{"hang", func(string, any) (any, error) { <-hang; return nil, status.Error(codes.Unknown, "too late") }, "it did not answer in time"},
		{"score out of range", answer("Score", &schedulingv1.ScoreResponse{Scores: []byte{1, 101}}), "the score 101 for node"},
		{"too few scores", answer("Score", &schedulingv1.ScoreResponse{Scores: []byte{1}}), "1 scores for 2 nodes"},
		{"too many scores", answer("Score", &schedulingv1.ScoreResponse{Scores: []byte{1, 1, 1}}), "3 scores for 2 nodes"},
		{"unknown node", answer("Filter", &schedulingv1.FilterResponse{Rejected: []*schedulingv1.Rejection{{Reason: "no", Nodes: []uint32{0, 7}}}}), "it rejected node 7, which does not exist"},
		{"no reason", answer("Filter", &schedulingv1.FilterResponse{Rejected: []*schedulingv1.Rejection{{Nodes: []uint32{0}}}}), "without a reason"},
		{"never knows the epoch", fails(codes.FailedPrecondition, "who are you?"), "who are you?"},
	} {
		for _, policy := range []string{"Ignore", "Fail"} {
			t.Run(tc.name+"/"+policy, func(t *testing.T) {
				p := started(t, byZone)
				settings := plugins.Settings{FailurePolicy: policy, Timeout: patient}
				if tc.name == "hang" {
					settings.Timeout = 50 * time.Millisecond
				}
				p.SetSettings(settings)
				p.breakWith(tc.fault)
				r := newRig(t, p)
				r.nodes(node("a", "good"), node("b", "good"))
				_, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj())
				if policy == "Ignore" && err != nil {
					t.Errorf("the pod was not scheduled: %v", err)
				}
				if policy == "Fail" && (err == nil || !strings.Contains(err.Error(), "plugin zones: ") || !strings.Contains(err.Error(), tc.says)) {
					t.Errorf("error %v, want the plugin's name and %q", err, tc.says)
				}
				if lines := r.lines.AllEntries(); len(lines) != 1 || !strings.Contains(lines[0].Message, tc.says) {
					t.Errorf("%d lines, %v: want one with %q", len(lines), lines, tc.says)
				}
				p.breakWith(nil)
				p.SetSettings(plugins.Settings{FailurePolicy: policy, Timeout: patient})
				if _, _, err := r.schedule(st.MakePod().Name("q").UID("q").Obj()); err != nil {
					t.Errorf("the next pod, with a sound plugin: %v", err)
				}
			})
		}
	}
}

// TestNotRunning: without a process the policy holds at once; so it does for a plugin that has never run.
func TestNotRunning(t *testing.T) {
	for _, never := range []bool{false, true} {
		for _, policy := range []string{"", "Ignore", "Fail"} {
			p := newProcess("zones")
			if !never {
				p.start(t, byZone)
				p.Kill()
			}
			p.SetSettings(plugins.Settings{FailurePolicy: policy})
			r := newRig(t, p)
			r.nodes(node("a", "no"), node("b", "good"))
			_, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj())
			if (err != nil) != (policy == "Fail") {
				t.Errorf("never ran %v, policy %q: %v", never, policy, err)
			}
			if err != nil && !strings.Contains(err.Error(), "plugin zones: it is not running: ") {
				t.Errorf("error %v does not say which plugin does not run", err)
			}
		}
	}
}

// TestHangs: a plugin that does not answer is not called for each pod.
func TestHangs(t *testing.T) {
	p := started(t, byZone)
	p.SetSettings(plugins.Settings{Timeout: 20 * time.Millisecond})
	hang := make(chan struct{})
	p.breakWith(func(string, any) (any, error) { <-hang; return nil, status.Error(codes.Unknown, "too late") })
	r := newRig(t, p)
	r.nodes(node("a", "no"), node("b", "good"))
	began := time.Now()
	for i := range 50 {
		if _, _, err := r.schedule(st.MakePod().Name(fmt.Sprint("p", i)).UID(fmt.Sprint("p", i)).Obj()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(p.took()); n < maxMissed || n > 10+int(time.Since(began).Seconds()) {
		t.Errorf("called %d times for 50 pods, want %d, and one more each second", n, maxMissed)
	}
	close(hang)
	p.breakWith(nil)
	// Once it answers again, it is called again.
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		if _, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj()); err != nil {
			t.Fatal(err)
		}
		if asked := requests(p); strings.HasPrefix(asked, "Filter") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("it is no longer called")
		}
	}
}

func TestBreaker(t *testing.T) {
	var b breaker
	now := time.Unix(1000, 0)
	missed := context.DeadlineExceeded
	for i := range maxMissed {
		if err := b.allow(now); err != nil {
			t.Fatalf("refused after %d missed deadlines", i)
		}
		b.note(missed, now)
	}
	if b.allow(now) == nil || b.allow(now.Add(pause-1)) == nil {
		t.Error("a plugin that hangs is asked")
	}
	if err := b.allow(now.Add(pause)); err != nil {
		t.Error("it is never asked again")
	}
	if b.allow(now.Add(pause+1)) == nil {
		t.Error("more than one asks a plugin that hangs")
	}
	b.note(status.Error(codes.Unavailable, "crashed"), now.Add(pause+2))
	if err := b.allow(now.Add(pause + 3)); err != nil {
		t.Error("a plugin that crashed is taken for one that hangs")
	}
}

// TestCancelled: a cycle that upstream has ended is no failure of the plugin.
func TestCancelled(t *testing.T) {
	p := started(t, byZone)
	r := newRig(t, p)
	r.nodes(node("a", "good"), node("b", "good"))
	r.snapshot()
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	_, result, _ := r.f.RunPreFilterPlugins(ctx, framework.NewCycleState(), st.MakePod().Name("p").UID("p").Obj())
	if result.Code() != fwk.UnschedulableAndUnresolvable {
		t.Errorf("status %v, want one that does not mention the plugin", result)
	}
	if lines := r.lines.AllEntries(); len(lines) != 0 {
		t.Errorf("lines about it: %v", lines)
	}
}
