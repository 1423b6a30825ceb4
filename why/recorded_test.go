package why

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// memory is a recorder with one timeline.
type memory struct{ timeline *trace.Timeline }

func (m memory) Timeline(_ context.Context, resource, namespace, name string, _ uint64) (*trace.Timeline, error) {
	if o := m.timeline.Object; o.Resource != resource || o.Namespace != namespace || o.Name != name {
		return nil, errors.New("no record")
	}
	return m.timeline, nil
}

func TestRecorded(t *testing.T) {
	begin := time.Now().Add(-time.Minute)
	request := trace.Span{ID: 1, Stage: record.Request, Name: "create", Begin: begin, End: begin.Add(time.Second)}
	web := record.Ref{Resource: "pods", Namespace: "default", Name: "web"}
	quota, rights := request, request
	quota.Error = `pods "web" is forbidden: exceeded quota: small, requested: pods=1, used: pods=1, limited: pods=1`
	rights.Error = `pods is forbidden: User "alice" cannot create resource "pods" in API group "" in the namespace "default"`
	for name, c := range map[string]struct {
		timeline trace.Timeline
		code     Code
		cause    []string
		evidence string
	}{
		"deleted": {trace.Timeline{Object: web, Verb: "delete", SetOff: "delete by alice (kubectl)", Settled: true, Begin: begin, End: begin.Add(2 * time.Second),
			Spans: []trace.Span{request}, Before: "waiting: pull app:2: not found", Failures: []trace.Span{{Stage: record.Pull, Name: "app:2", Error: "not found"}}},
			Deleted, []string{"alice (kubectl) deleted it", "waiting: pull app:2"}, "not found"},
		"quota": {trace.Timeline{Object: web, Verb: "create", SetOff: "create by alice", Settled: true, Spans: []trace.Span{quota}},
			QuotaExceeded, []string{"its creation was refused", "ResourceQuota small is used up"}, "exceeded quota"},
		"rights": {trace.Timeline{Object: web, Verb: "create", SetOff: "create by alice", Settled: true, Spans: []trace.Span{rights}},
			AccessDenied, []string{"alice cannot create resource"}, "forbidden"},
		"of another object": {trace.Timeline{Object: record.Ref{Resource: "pods", Namespace: "other", Name: "web"}, Verb: "delete", Settled: true, Spans: []trace.Span{request}},
			NotFound, []string{"does not exist in namespace default"}, "knows no"},
		"not deleted yet": {trace.Timeline{Object: web, Verb: "delete", Spans: []trace.Span{request}}, NotFound, []string{"does not exist"}, "knows no"},
		"created":         {trace.Timeline{Object: web, Verb: "create", Spans: []trace.Span{request}}, NotFound, []string{"does not exist"}, "knows no"},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewReader(Options{Dynamic: dynamicfake.NewSimpleDynamicClient(scheme.Scheme), Record: memory{&c.timeline}})
			answer, err := Explain(t.Context(), r, Target{Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Resource: corev1.SchemeGroupVersion.WithResource("pods"), Namespace: "default", Name: "web"})
			if err != nil {
				t.Fatal(err)
			}
			if answer.Status != Absent || answer.Code != c.code || len(answer.Remedy) == 0 {
				t.Errorf("%s, %s: %s, %q", answer.Status, answer.Code, answer.Cause, answer.Remedy)
			}
			for _, part := range c.cause {
				if !strings.Contains(answer.Cause, part) {
					t.Errorf("the cause lacks %q: %s", part, answer.Cause)
				}
			}
			if !slices.ContainsFunc(answer.Evidence, func(e Evidence) bool { return strings.Contains(e.Text, c.evidence) }) {
				t.Errorf("the evidence lacks %q: %+v", c.evidence, answer.Evidence)
			}
		})
	}
}

// TestTook: the answer for a healthy object has what its start took, if that is in the record.
func TestTook(t *testing.T) {
	web := runs("web", "web")
	web.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: before(time.Minute)}}}}
	begin := time.Now()
	timeline := trace.Timeline{Object: record.Ref{Resource: "pods", Namespace: "ns", Name: "web"}, Verb: "create", SetOff: "create by alice", Settled: true, Outcome: "ready",
		Begin: begin, End: begin.Add(520 * time.Millisecond), Stages: []trace.Total{{Stage: record.Pull, Share: 0.71}}}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	ask := func() *Answer {
		r, _ := reader(t, web, node)
		r.Record = memory{&timeline}
		a, err := Explain(t.Context(), r, podTarget("web"))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if a := ask(); a.Status != Healthy || !strings.HasSuffix(a.Cause, "; its start took 520ms, 71 % of it pull (images)") {
		t.Errorf("%s: %s", a.Status, a.Cause)
	}
	timeline.Settled = false
	if a := ask(); a.Status != Healthy || strings.Contains(a.Cause, "took") {
		t.Errorf("not settled: %s: %s", a.Status, a.Cause)
	}
}

// TestPeak: what the cgroup counted is the evidence of a container that ran out of memory, also where the runtime did
// not see it.
func TestPeak(t *testing.T) {
	limited := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("32Mi")}
	}
	for name, c := range map[string]struct {
		reason  string // the runtime's
		ago     time.Duration
		message string // the record's
		code    Code
		want    string
	}{
		"both say so":               {"OOMKilled", 5 * time.Second, "OOMKilled", OOMKilled, "memory limit of 32Mi (peak 31.9Mi)"},
		"the kernel alone":          {"Error", 5 * time.Second, "OOMKilled", OOMKilled, "memory limit of 32Mi (peak 31.9Mi)"},
		"the record of another run": {"OOMKilled", time.Minute, "OOMKilled", OOMKilled, "memory limit of 32Mi, "},
		"no kill for memory":        {"Error", 5 * time.Second, "Error", CrashLoop, "exit code 137"},
		"another run's kill":        {"Error", time.Minute, "OOMKilled", CrashLoop, "exit code 137"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := aPod(all(limited, state(waitsFor("CrashLoopBackOff", "back-off"), ended(c.reason, 137, time.Second, 5*time.Second), 4, false)))
			r, _ := reader(t, pod, readyNode("node-1"))
			r.Record = memory{&trace.Timeline{Object: record.Ref{UID: string(pod.UID), Resource: "pods", Namespace: "ns", Name: "web"}, Ended: []trace.Span{
				{Stage: record.Run, Name: "app", End: before(c.ago).Time, Message: c.message, Peak: 32<<20 - 1},
			}}}
			a := ask(t, r, podTarget("web"))
			if a.Code != c.code || !strings.Contains(a.Cause, c.want) {
				t.Errorf("%s: %s", a.Code, a.Cause)
			}
			peak := slices.ContainsFunc(a.Evidence, func(e Evidence) bool { return e.Source == "record: run app" && strings.Contains(e.Text, "31.9Mi") })
			if want := strings.Contains(c.want, "peak"); peak != want {
				t.Errorf("the peak is in the evidence: %v, want %v: %+v", peak, want, a.Evidence)
			}
		})
	}
}
