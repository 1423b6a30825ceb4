package trace

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/trace/record"
)

// scene records what a source would, at milliseconds since it began.
type scene struct {
	t     *testing.T
	store *record.Store
	zero  int64
}

func newScene(t *testing.T) *scene {
	s := &scene{t: t, store: record.NewStore(record.Options{})}
	s.zero = s.store.Clock().Now()
	return s
}

func ref(resource, name string) record.Ref {
	return record.Ref{UID: "uid-of-" + name, Resource: resource, Namespace: "default", Name: name}
}

func (s *scene) at(ms float64) int64 { return s.zero + int64(ms*1e6) }

func (s *scene) add(object record.Ref, stage record.Stage, name string, from, to float64, more ...func(*record.Record)) {
	r := record.Record{Object: object, Stage: stage, Name: name, Start: s.at(from), Duration: time.Duration((to - from) * 1e6)}
	if stage == record.Request {
		r.Code = 201
	}
	for _, f := range more {
		f(&r)
	}
	s.store.Add(r)
}

func actor(name, agent string) func(*record.Record) {
	return func(r *record.Record) { r.Actor, r.Agent = name, agent }
}

func spec(r *record.Record) { r.Spec = true }

func failed(code int, text string) func(*record.Record) {
	return func(r *record.Record) { r.Code, r.Error = code, text }
}

func says(text string) func(*record.Record) { return func(r *record.Record) { r.Message = text } }

// pod records the start of a pod with an init container, a claim's volume and a hook, from a request at ms.
func (s *scene) pod(name string, owner record.Ref, ms float64) record.Ref {
	p := ref(pods, name)
	s.store.Describe(record.Object{Ref: p, Owners: []string{owner.UID}, InitContainers: []string{"init"}, Containers: []string{"web"}})
	on := func(r *record.Record) { r.Node = "node-1" }
	s.add(p, record.Request, "create", ms, ms+1, actor("system:serviceaccount:kube-system:replicaset-controller", "kubelith"), spec)
	s.add(p, record.Schedule, "node-1", ms+2, ms+3)
	s.add(p, record.Bind, "node-1", ms+3, ms+5)
	s.add(p, record.Volume, "NodePublishVolume", ms+9, ms+10, on)
	s.add(p, record.CNI, "", ms+14, ms+18, on, says("10.42.0.7"))
	s.add(p, record.Sandbox, "", ms+12, ms+20, on)
	s.add(p, record.Pull, "app:1", ms+21, ms+61, on)
	s.add(p, record.Create, "init", ms+62, ms+63, on)
	s.add(p, record.Start, "init", ms+63, ms+66, on)
	s.add(p, record.Sync, "", ms+7, ms+66, on)
	s.add(p, record.Run, "init", ms+66, ms+166, on, says("0: Completed"))
	s.add(p, record.Create, "web", ms+170, ms+171, on)
	s.add(p, record.Start, "web", ms+171, ms+174, on)
	s.add(p, record.Hook, "postStart web", ms+174, ms+180, on)
	s.add(p, record.Sync, "", ms+168, ms+180, on)
	s.add(p, record.Request, "patch status", ms+200, ms+202, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Condition, "Ready", ms+202, ms+202, says("True"))
	return p
}

// deployment records a Deployment of two pods.
func (s *scene) deployment() (deployment, set record.Ref) {
	deployment, set = ref("deployments.apps", "shop"), ref("replicasets.apps", "shop-1")
	two := int32(2)
	s.store.Describe(record.Object{Ref: deployment, Replicas: &two})
	s.store.Describe(record.Object{Ref: set, Owners: []string{deployment.UID}})
	s.add(deployment, record.Request, "create", 0, 4, actor("kubelith-admin", "kubectl/v1.37"), spec, func(r *record.Record) {
		r.Steps = []record.Step{{Name: "authentication", Offset: -1, Duration: 100_000}, {Name: "etcd", Offset: 2_000_000, Duration: 1_500_000}}
	})
	s.add(set, record.Request, "create", 6, 8, actor("system:serviceaccount:kube-system:deployment-controller", "kubelith"), spec)
	s.pod("shop-1-a", set, 10)
	s.pod("shop-1-b", set, 11)
	return deployment, set
}

func (s *scene) timeline(r record.Ref) *Timeline {
	s.t.Helper()
	h, ok := s.store.Lookup(r.Resource, r.Namespace, r.Name)
	if !ok {
		s.t.Fatalf("no record of %v", r)
	}
	t := Assemble(s.store, h, func(record.Ref) bool { return true }, s.at(10_000))
	s.consistent(t)
	return t
}

// consistent checks what holds of every timeline.
func (s *scene) consistent(t *Timeline) {
	s.t.Helper()
	last := t.Begin
	for _, c := range t.Critical {
		span := t.Spans[c.Span-1]
		if c.Begin.Before(last) || !c.End.After(c.Begin) || c.Begin.Before(span.Begin) || c.End.After(span.End) || !span.Critical {
			s.t.Errorf("the critical path's part %s %s (%v to %v) is out of order or of its span", span.Stage, span.Name, c.Begin.Sub(t.Begin), c.End.Sub(t.Begin))
		}
		last = c.End
	}
	for i, span := range t.Spans {
		if span.ID != i+1 || span.Parent >= span.ID || span.End.Before(span.Begin) || span.End.After(t.End) {
			s.t.Errorf("span %d %s %s: parent %d, %v to %v", span.ID, span.Stage, span.Name, span.Parent, span.Begin.Sub(t.Begin), span.End.Sub(t.Begin))
		}
	}
	if s.t.Failed() {
		s.t.Log("\n" + dump(t))
	}
}

// dump writes a timeline, for messages of tests.
func dump(t *Timeline) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s, %s; settled %v, covered %.3f\n", t.Object.Name, t.SetOff, t.Outcome, t.Settled, t.Covered)
	for _, s := range t.Spans {
		mark := " "
		if s.Critical {
			mark = "*"
		}
		fmt.Fprintf(&b, "%s %3d<%-3d %-10s %-14s %-20s %8.1f %8.1f %s\n", mark, s.ID, s.Parent, s.Object.Name, s.Stage, s.Name,
			s.Begin.Sub(t.Begin).Seconds()*1e3, s.Duration().Seconds()*1e3, s.Error)
	}
	return b.String()
}

// stages returns the stages of an object in their order, without parts.
func stages(t *Timeline, object record.Ref) string {
	var all []string
	for _, s := range t.Spans {
		if s.Object.UID == object.UID && s.Parent == 0 {
			all = append(all, strings.TrimSpace(string(s.Stage)+" "+s.Name))
		}
	}
	return strings.Join(all, ", ")
}

func TestDeployment(t *testing.T) {
	s := newScene(t)
	deployment, set := s.deployment()
	got := s.timeline(deployment)
	if !got.Settled || got.Outcome != "2 of 2 pods are ready" || got.SetOff != "create by kubelith-admin (kubectl)" || got.Verb != "create" {
		t.Errorf("settled %v, outcome %q, set off by %q", got.Settled, got.Outcome, got.SetOff)
	}
	if took := got.End.Sub(got.Begin); took != 213*time.Millisecond {
		t.Errorf("it took %v, not until the second pod was ready", took)
	}
	if got.Covered < 0.99 {
		t.Errorf("covered: %.3f", got.Covered)
	}
	if st := stages(got, set); st != "reconcile deployment-controller, request create" {
		t.Errorf("stages of the ReplicaSet: %s", st)
	}
	const want = "reconcile replicaset-controller, request create, queue, schedule node-1, bind node-1, deliver, setup, volume NodePublishVolume, setup, " +
		"sandbox, prepare app:1, pull app:1, prepare init, create init, start init, run init, prepare web, create web, start web, hook postStart web, settle, request patch status"
	for _, name := range []string{"shop-1-a", "shop-1-b"} {
		if st := stages(got, ref(pods, name)); st != want {
			t.Errorf("stages of %s:\n%s", name, st)
		}
	}
	// Only the slower pod is on the critical path, after what both need.
	for _, span := range got.Spans {
		if span.Critical && span.Object.Name == "shop-1-a" && span.Begin.After(got.Begin.Add(20*time.Millisecond)) {
			t.Errorf("the faster pod's %s is on the critical path", span.Stage)
		}
	}
	if got.Stages[0].Stage != record.Run {
		t.Errorf("the longest stage is %s", got.Stages[0].Stage)
	}
	steps := 0
	for _, span := range got.Spans {
		if span.Parent == 1 {
			steps++
		}
		if span.Stage == record.CNI && (span.Parent == 0 || got.Spans[span.Parent-1].Stage != record.Sandbox) {
			t.Error("the CNI's call is not a part of the sandbox")
		}
	}
	if steps != 2 {
		t.Errorf("the request has %d steps", steps)
	}
	if t.Failed() {
		t.Log("\n" + dump(got))
	}
}

// TestScale: what another request set off later has its own timeline.
func TestScale(t *testing.T) {
	s := newScene(t)
	deployment, set := s.deployment()
	three := int32(3)
	s.store.Describe(record.Object{Ref: deployment, Replicas: &three})
	s.add(deployment, record.Request, "patch scale", 1000, 1002, actor("kubelith-admin", "kubectl/v1.37"), spec)
	s.add(set, record.Request, "update", 1004, 1005, actor("system:serviceaccount:kube-system:deployment-controller", "kubelith"), spec)
	before := s.timeline(deployment)
	if before.Settled || before.Outcome != "2 of 3 pods are ready" {
		t.Errorf("before the third pod: %v, %q", before.Settled, before.Outcome)
	}
	s.pod("shop-1-c", set, 1010)
	after := s.timeline(deployment)
	if !after.Settled || after.Verb != "patch" || after.End.Sub(after.Begin) != 212*time.Millisecond {
		t.Errorf("settled %v, %s, %v", after.Settled, after.SetOff, after.End.Sub(after.Begin))
	}
	if stages(after, ref(pods, "shop-1-a")) != "" {
		t.Errorf("a pod that was there has stages: %s", stages(after, ref(pods, "shop-1-a")))
	}
	if after.Covered < 0.95 {
		t.Errorf("covered %.3f\n%s", after.Covered, dump(after))
	}
}

func TestDeletion(t *testing.T) {
	s := newScene(t)
	_, set := s.deployment()
	p := ref(pods, "shop-1-a")
	on := func(r *record.Record) { r.Node = "node-1" }
	s.add(p, record.Request, "delete", 1000, 1002, actor("kubelith-admin", "kubectl/v1.37"))
	s.add(p, record.Hook, "preStop web", 1006, 1010, on)
	s.add(p, record.Stop, "web", 1010, 3010, on)
	s.add(p, record.Terminate, "", 1005, 3010, on)
	s.add(p, record.CNI, "", 3020, 3024, on)
	s.add(p, record.StopSandbox, "", 3015, 3025, on)
	s.add(p, record.Request, "delete", 3040, 3042, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Phase, "Deleted", 3042, 3042)
	got := s.timeline(p)
	if !got.Settled || got.Outcome != "deleted" || got.SetOff != "delete by kubelith-admin (kubectl)" || got.End.Sub(got.Begin) != 2042*time.Millisecond {
		t.Errorf("settled %v, %q, %q, %v", got.Settled, got.Outcome, got.SetOff, got.End.Sub(got.Begin))
	}
	if st := stages(got, p); st != "request delete, deliver, prepare postStart web, hook preStop web, stop web, grace, stop-sandbox, settle, request delete" &&
		st != "request delete, deliver, prepare preStop web, hook preStop web, stop web, grace, stop-sandbox, settle, request delete" {
		t.Errorf("stages: %s\n%s", st, dump(got))
	}
	if got.Before != "ready" || len(got.Failures) != 0 {
		t.Errorf("before: %q, %v", got.Before, got.Failures)
	}
	if got.Covered < 0.99 || got.Stages[0].Stage != record.Stop {
		t.Errorf("covered %.3f, longest %v", got.Covered, got.Stages)
	}
	// A deployment that is deleted was what its pods were.
	deployment := ref("deployments.apps", "shop")
	s.add(p, record.Request, "create", 3500, 3501, actor("system:serviceaccount:kube-system:replicaset-controller", "kubelith"), spec)
	s.add(deployment, record.Request, "update status", 3900, 3901, failed(409, "the object has been modified"))
	s.add(deployment, record.Request, "delete", 4000, 4001, actor("kubelith-admin", "kubectl/v1.37"))
	s.add(deployment, record.Phase, "Deleted", 4001, 4001)
	if got := s.timeline(deployment); got.Before != "2 of 2 pods are ready" || len(got.Failures) != 0 {
		t.Errorf("before: %q, %v", got.Before, got.Failures)
	}
	_ = set
}

func TestWaiting(t *testing.T) {
	for name, c := range map[string]struct {
		record  func(*scene, record.Ref)
		outcome string
		last    record.Stage
	}{
		"no room": {func(s *scene, p record.Ref) {
			s.add(p, record.Schedule, "", 2, 3, failed(0, "0/1 nodes are available: 1 Insufficient cpu"))
		}, "waiting: 0/1 nodes are available: 1 Insufficient cpu", Queue},
		"no kubelet": {func(s *scene, p record.Ref) { s.add(p, record.Bind, "node-1", 3, 4) }, "not ready", Deliver},
		"no image": {func(s *scene, p record.Ref) {
			s.add(p, record.Bind, "node-1", 3, 4)
			s.add(p, record.Sandbox, "", 6, 7)
			s.add(p, record.Pull, "app:2", 7, 8, failed(0, "not found"))
			s.add(p, record.Sync, "", 5, 8, failed(0, ""))
		}, "waiting: pull app:2: not found", Prepare},
		"a volume": {func(s *scene, p record.Ref) {
			s.add(p, record.Bind, "node-1", 3, 4)
			s.add(p, record.Sync, "", 5, 8)
			s.add(p, record.Event, "FailedMount", 9, 9, failed(0, "configmap \"x\" not found"))
		}, "waiting: FailedMount: configmap \"x\" not found", Setup},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t)
			p := ref(pods, "web")
			s.store.Describe(record.Object{Ref: p, Containers: []string{"web"}})
			s.add(p, record.Request, "create", 0, 1, actor("kubelith-admin", "kubectl/v1.37"), spec)
			c.record(s, p)
			got := s.timeline(p)
			if got.Settled || got.Outcome != c.outcome {
				t.Errorf("settled %v, outcome %q", got.Settled, got.Outcome)
			}
			if end := got.Spans[len(got.Spans)-1]; end.Stage != c.last || !end.Wait || !end.End.Equal(got.End) {
				t.Errorf("it ends with %s\n%s", end.Stage, dump(got))
			}
		})
	}
}

// TestJob: what a job waits for is its pod's run.
func TestJob(t *testing.T) {
	s := newScene(t)
	job, p := ref("jobs.batch", "count"), ref(pods, "count-x")
	s.store.Describe(record.Object{Ref: job})
	s.store.Describe(record.Object{Ref: p, Owners: []string{job.UID}, Containers: []string{"count"}})
	s.add(job, record.Request, "create", 0, 2, actor("kubelith-admin", "kubectl/v1.37"), spec)
	s.add(p, record.Request, "create", 4, 5, actor("system:serviceaccount:kube-system:job-controller", "kubelith"), spec)
	s.add(p, record.Schedule, "node-1", 6, 7)
	s.add(p, record.Bind, "node-1", 7, 8)
	s.add(p, record.Sync, "", 9, 20)
	s.add(p, record.Sandbox, "", 10, 15)
	s.add(p, record.Create, "count", 16, 17)
	s.add(p, record.Start, "count", 17, 19)
	s.add(p, record.Request, "patch status", 30, 31, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Condition, "Ready", 31, 31, says("True"))
	s.add(p, record.Run, "count", 19, 1019)
	s.add(p, record.Request, "patch status", 1024, 1025, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Phase, "Succeeded", 1025, 1025)
	s.add(p, record.Condition, "Ready", 1025, 1025, says("False: PodCompleted"))
	s.add(job, record.Request, "update status", 1028, 1030, actor("system:serviceaccount:kube-system:job-controller", "kubelith"))
	s.add(job, record.Condition, "Complete", 1030, 1030, says("True"))
	got := s.timeline(job)
	if !got.Settled || got.Outcome != "complete" || got.Stages[0].Stage != record.Run || got.Covered < 0.99 {
		t.Errorf("%v, %s, %v, covered %.3f\n%s", got.Settled, got.Outcome, got.Stages[0], got.Covered, dump(got))
	}
	if one := s.timeline(p); one.Outcome != "succeeded" || one.Covered < 0.99 {
		t.Errorf("the pod: %s, covered %.3f\n%s", one.Outcome, one.Covered, dump(one))
	}
}

// TestRollout: the second new pod waits for the first one, a StatefulSet's second pod too.
func TestRollout(t *testing.T) {
	for _, kind := range []string{"deployments.apps", "statefulsets.apps"} {
		s := newScene(t)
		two := int32(2)
		root := ref(kind, "shop")
		owner, controller := root, "statefulset-controller"
		s.store.Describe(record.Object{Ref: root, Replicas: &two})
		s.add(root, record.Request, "patch", 0, 2, actor("kubelith-admin", "kubectl/v1.37"), spec)
		if kind == "deployments.apps" {
			owner, controller = ref("replicasets.apps", "shop-2"), "deployment-controller"
			s.store.Describe(record.Object{Ref: owner, Owners: []string{root.UID}, Replicas: &two})
			s.add(owner, record.Request, "create", 4, 5, actor("system:serviceaccount:kube-system:"+controller, "kubelith"), spec)
		}
		s.pod("shop-2-a", owner, 10)
		if kind == "deployments.apps" {
			s.add(owner, record.Request, "update", 216, 217, actor("system:serviceaccount:kube-system:"+controller, "kubelith"), spec)
		}
		s.pod("shop-2-b", owner, 220)
		got := s.timeline(root)
		if !got.Settled || got.End.Sub(got.Begin) != 422*time.Millisecond || got.Covered < 0.99 {
			t.Errorf("%s: settled %v, %v, covered %.3f\n%s", kind, got.Settled, got.End.Sub(got.Begin), got.Covered, dump(got))
		}
		critical := map[string]time.Duration{}
		for _, c := range got.Critical {
			critical[got.Spans[c.Span-1].Object.Name] += c.End.Sub(c.Begin)
		}
		if critical["shop-2-a"] < 200*time.Millisecond || critical["shop-2-b"] < 200*time.Millisecond {
			t.Errorf("%s: on the critical path: %v\n%s", kind, critical, dump(got))
		}
	}
}

// TestEnding: pods that still end keep a timeline open, and are no part of one that begins later.
func TestEnding(t *testing.T) {
	s := newScene(t)
	deployment, set := s.deployment()
	controller := "system:serviceaccount:kube-system:replicaset-controller"
	old := ref(pods, "shop-1-a")
	s.add(deployment, record.Request, "patch", 1000, 1002, actor("kubelith-admin", "kubectl/v1.37"), spec)
	s.pod("shop-1-c", set, 1010)
	s.add(old, record.Request, "delete", 1220, 1221, actor(controller, "kubelith"))
	got := s.timeline(deployment)
	if got.Settled || got.Covered < 0.95 || !strings.HasSuffix(stages(got, old), "request delete, grace") {
		t.Errorf("settled %v, covered %.3f: %s\n%s", got.Settled, got.Covered, stages(got, old), dump(got))
	}

	three := int32(3)
	s.store.Describe(record.Object{Ref: deployment, Replicas: &three})
	s.add(deployment, record.Request, "patch scale", 2000, 2002, actor("kubelith-admin", "kubectl/v1.37"), spec)
	if got = s.timeline(deployment); got.Settled || got.Outcome != "2 of 3 pods are ready" {
		t.Errorf("the old pod counts: settled %v, %s", got.Settled, got.Outcome)
	}
	s.pod("shop-1-d", set, 2010)
	if got = s.timeline(deployment); !got.Settled || got.End.Sub(got.Begin) != 212*time.Millisecond {
		t.Errorf("settled %v, %v", got.Settled, got.End.Sub(got.Begin))
	}
}

// TestLate: a pod is ready before its agent has sent what it did for it.
func TestLate(t *testing.T) {
	s := newScene(t)
	p := ref(pods, "web")
	s.store.Describe(record.Object{Ref: p, Containers: []string{"web"}})
	s.add(p, record.Request, "create", 0, 1, actor("kubelith-admin", "kubectl/v1.37"), spec)
	s.add(p, record.Bind, "node-1", 3, 4)
	s.add(p, record.Request, "patch status", 200, 202, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Condition, "Ready", 202, 202, says("True"))
	state := func(ms float64) (settled, pending bool) {
		h, _ := s.store.Get(p.UID)
		got := Assemble(s.store, h, func(record.Ref) bool { return true }, s.at(ms))
		return got.Settled, got.Pending
	}
	if settled, pending := state(300); settled || !pending {
		t.Errorf("at once: settled %v, pending %v", settled, pending)
	}
	if settled, pending := state(5000); !settled || pending {
		t.Errorf("nothing came: settled %v, pending %v", settled, pending)
	}
	s.add(p, record.Start, "web", 100, 110)
	if settled, pending := state(300); !settled || pending {
		t.Errorf("it came: settled %v, pending %v", settled, pending)
	}
}

// TestLastRuns: how the containers of a pod ended last is there, also long after its start.
func TestLastRuns(t *testing.T) {
	s := newScene(t)
	p := s.pod("web", ref("replicasets.apps", "web"), 0)
	peak := func(n int64) func(*record.Record) { return func(r *record.Record) { r.Peak = n } }
	s.add(p, record.Run, "web", 1000, 2000, peak(1))
	s.add(p, record.Run, "web", 900_000, 901_000, peak(2))
	var got []string
	for _, e := range s.timeline(p).Ended {
		got = append(got, fmt.Sprintf("%s %d", e.Name, e.Peak))
	}
	if want := []string{"init 0", "web 2"}; !slices.Equal(got, want) {
		t.Errorf("ended: %q, want %q", got, want)
	}
}

// TestBeforeTheRecord: of a pod from before a restart of the server there is what its agent has sent.
func TestBeforeTheRecord(t *testing.T) {
	s := newScene(t)
	p := ref(pods, "web")
	s.add(p, record.Sync, record.Began, 5, 5)
	s.add(p, record.Sandbox, "", 10, 20)
	s.add(p, record.Start, "web", 22, 30)
	s.add(p, record.Request, "patch status", 40, 41, actor("system:node:node-1", "kubelith"))
	s.add(p, record.Condition, "Ready", 41, 41, says("True"))
	got := s.timeline(p)
	if !got.Settled || got.SetOff != "" || len(got.Notices) != 1 || !strings.HasPrefix(stages(got, p), "sandbox, prepare web, start web") {
		t.Errorf("settled %v, set off by %q, %q: %s", got.Settled, got.SetOff, got.Notices, stages(got, p))
	}
}

// TestRefused: a controller's pods that quota refuses have no UID, and are found by their owner.
func TestRefused(t *testing.T) {
	s := newScene(t)
	set := ref("replicasets.apps", "shop-1")
	one := int32(1)
	s.store.Describe(record.Object{Ref: set, Replicas: &one})
	s.add(set, record.Request, "create", 0, 2, actor("kubelith-admin", "kubectl/v1.37"), spec)
	p := record.Ref{Resource: pods, Namespace: "default", Name: "shop-1-"}
	s.store.Describe(record.Object{Ref: p, Owners: []string{set.UID}})
	for i := range 3 {
		s.add(p, record.Request, "create", 4+float64(i), 4.5+float64(i), actor("system:serviceaccount:kube-system:replicaset-controller", "kubelith"), failed(403, "exceeded quota: small"))
	}
	got := s.timeline(set)
	if got.Settled || got.Outcome != "0 of 1 pods are ready; shop-1-: exceeded quota: small" {
		t.Errorf("settled %v, %q\n%s", got.Settled, got.Outcome, dump(got))
	}
	refused := slices.IndexFunc(got.Spans, func(s Span) bool { return s.Error != "" })
	if refused < 0 || got.Spans[refused].Count != 3 {
		t.Errorf("the refused requests:\n%s", dump(got))
	}
}

func TestHidden(t *testing.T) {
	s := newScene(t)
	deployment, _ := s.deployment()
	h, _ := s.store.Lookup(deployment.Resource, deployment.Namespace, deployment.Name)
	got := Assemble(s.store, h, func(r record.Ref) bool { return r.Resource != pods }, s.at(500))
	if len(got.Notices) != 1 || !strings.Contains(got.Notices[0], "2 objects are not shown") {
		t.Errorf("notices: %q", got.Notices)
	}
	for _, span := range got.Spans {
		if span.Object.Resource == pods {
			t.Fatalf("a pod is shown: %v", span)
		}
	}
}

func TestLists(t *testing.T) {
	s := newScene(t)
	s.deployment()
	may := func(record.Ref) bool { return true }
	starts := SlowestStarts(s.store, s.store.All(pods), may, s.at(500), 1)
	if len(starts) != 1 || starts[0].Took != 202*time.Millisecond || starts[0].Slowest.Stage != record.Run {
		t.Errorf("slowest starts: %+v", starts)
	}
	requests := SlowestRequests(s.store.All(""), may, 2)
	if len(requests) != 2 || requests[0].What != "create" || requests[0].Slowest.Stage != "etcd" {
		t.Errorf("slowest requests: %+v", requests)
	}
	recent := Recent(s.store, s.store.All(""), may, s.at(500), 10)
	if len(recent) != 1 || recent[0].Object.Name != "shop" || recent[0].By != "kubelith-admin (kubectl)" {
		t.Errorf("recent: %+v", recent)
	}
	stats := Stats(s.store, s.store.All(pods), may, s.at(500))
	if len(stats) < 8 || stats[len(stats)-1].Stage != "total" || stats[0].Stage != Queue {
		t.Errorf("stats: %+v", stats)
	}
	for _, p := range stats {
		if p.Stage == record.Pull && (p.Count != 2 || p.P50 != 40*time.Millisecond || p.Max != p.P99) {
			t.Errorf("pulls: %+v", p)
		}
	}
}
