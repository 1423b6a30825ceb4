package trace

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/record"
)

// app creates a claim and a Deployment with an init container, the claim's volume, a hook and the plugin's sidecar, on
// a node.
func app(t *testing.T, client kubernetes.Interface, ns, name, node string) {
	t.Helper()
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
	}}
	if _, err := client.CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := harness.Pod(ns, name, harness.Shell("sleep 1000")...)
	pod.Labels["sidecar"] = ""
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	pod.Spec.InitContainers = []corev1.Container{harness.Container("prepare", harness.Shell("sleep 0.3")...)}
	main := &pod.Spec.Containers[0]
	main.Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: harness.Shell("sleep 0.2")}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: harness.Shell("sleep 0.1")}},
	}
	main.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
	}}}
	one := int32(1)
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
	}}
	if _, err := client.AppsV1().Deployments(ns).Create(t.Context(), deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// settled waits until an object has settled and its timeline has the stages of pods that may come late, and returns it.
// The server waits for the records of agents only for a moment: on a slow machine some come later.
func settled(t *testing.T, c *api.Client, resource, ns, name string, late ...string) *trace.Timeline {
	t.Helper()
	var last *trace.Timeline
	harness.Eventually(t, harness.PodTimeout, resource+" "+name+" to settle", func() error {
		got, err := c.Timeline(t.Context(), resource, ns, name, 0)
		if err != nil {
			return err
		}
		if last = got; !got.Settled {
			return errors.New(got.Outcome)
		}
		for _, stage := range late {
			if !slices.Contains(waits, stage) && !slices.ContainsFunc(got.Spans, func(s trace.Span) bool {
				return s.Object.Resource == "pods" && (s.Parent == 0 || s.Stage == record.CNI) && (string(s.Stage) == stage || string(s.Stage)+" "+s.Name == stage)
			}) {
				return fmt.Errorf("%s is not there", stage)
			}
		}
		return nil
	})
	return last
}

// once are the stages that a pod of app goes through, in the order in which they begin.
var once = []string{
	"reconcile replicaset-controller", "request create", "queue", "schedule", "bind", "deliver", "setup", "volume NodePublishVolume", "sandbox", "cni",
	"create prepare", "start prepare", "run prepare", "create main", "start main", "hook postStart main", "create sidecar", "start sidecar", "settle", "request patch status",
}

// waits are those of once that may take no time, and then are not there: the next one had begun before the last one had
// answered.
var waits = []string{"queue", "deliver", "settle", "reconcile replicaset-controller"}

// testWay: each stage of a Deployment's start and end is there once, in causal order, on the server's node and on an
// agent; and the critical path explains where the time went.
func testWay(t *testing.T, c *harness.Cluster) {
	c.Agents[0].WaitReady(t) // testNode restarts the server
	ns := c.Namespace(t)
	client := c.Server.Client(t)
	traces, err := api.NewClient(c.Server.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []*harness.Server{c.Server, c.Agents[0]} {
		t.Run(node.NodeName(), func(t *testing.T) {
			name := "on-" + node.NodeName()
			app(t, client, ns, name, node.NodeName())
			t.Cleanup(func() {
				if t.Failed() {
					t.Log(c.Server.RunBinary(t, "trace", "deployment/"+name, "-n", ns).Stdout)
				}
			})
			var late []string
			if node != c.Server {
				late = once
			}
			got := settled(t, traces, "deployments.apps", ns, name, late...)
			checkPath(t, got)
			pod := podOf(t, got)
			if pod.Name == "" {
				t.Fatal("the timeline has no pod")
			}
			inOrder(t, got, pod, node.NodeName(), once)
			deletion(t, c, traces, pod, node.NodeName())
		})
	}
}

func podOf(t *testing.T, got *trace.Timeline) record.Ref {
	t.Helper()
	var pod record.Ref
	for _, s := range got.Spans {
		if s.Object.Resource == "pods" {
			if pod.Name != "" && pod != s.Object {
				t.Fatalf("two pods: %s and %s", pod.Name, s.Object.Name)
			}
			pod = s.Object
		}
	}
	return pod
}

// inOrder checks that the stages are those of the pod, each once, and begin in that order. setup may come in parts.
func inOrder(t *testing.T, got *trace.Timeline, pod record.Ref, node string, want []string) {
	t.Helper()
	begins, seen := map[string]time.Time{}, map[string]int{}
	for _, s := range got.Spans {
		if s.Object != pod || s.Parent != 0 && s.Stage != record.CNI {
			continue
		}
		name := strings.TrimSpace(string(s.Stage) + " " + s.Name)
		switch s.Stage {
		case record.Schedule, record.Bind:
			name = string(s.Stage)
			if s.Name != node {
				t.Errorf("%s on node %q", s.Stage, s.Name)
			}
		case record.Sandbox, record.CNI, record.StopSandbox, trace.Deliver, trace.Setup, trace.Settle, trace.Queue:
			name = string(s.Stage)
		}
		if seen[name]++; seen[name] == 1 {
			begins[name] = s.Begin
		}
		if slices.Contains([]record.Stage{record.Volume, record.Sandbox, record.CNI, record.Create, record.Start, record.Run, record.Hook, record.Stop}, s.Stage) && s.Node != node {
			t.Errorf("%s happened on node %q", name, s.Node)
		}
		if s.Error != "" {
			t.Errorf("%s failed: %s", name, s.Error)
		}
	}
	var last time.Time
	for _, name := range want {
		if seen[name] == 0 && slices.Contains(waits, name) {
			continue
		}
		if n := seen[name]; n == 0 || n > 1 && name != "setup" {
			t.Errorf("%s is there %d times", name, n)
		}
		if begins[name].Before(last) {
			t.Errorf("%s begins %v before what sets it off", name, last.Sub(begins[name]))
		}
		last = begins[name]
	}
}

// checkPath checks that the critical path has no significant gap.
func checkPath(t *testing.T, got *trace.Timeline) {
	t.Helper()
	if got.Covered < 0.95 {
		t.Errorf("the critical path explains only %.1f %%", 100*got.Covered)
	}
	var sum float64
	for _, total := range got.Stages {
		sum += total.Share
	}
	if sum < 0.95 || sum > 1.001 {
		t.Errorf("the shares of the stages are %.3f", sum)
	}
	if !strings.HasPrefix(got.SetOff, "create by ") || got.Verb != "create" {
		t.Errorf("set off by: %s", got.SetOff)
	}
	request := got.Spans[0]
	var steps []string
	for _, s := range got.Spans {
		if s.Parent == request.ID {
			steps = append(steps, string(s.Stage))
		}
	}
	for _, step := range []string{"authentication", "authorization", "etcd"} {
		if !slices.Contains(steps, step) {
			t.Errorf("the request has no step %s: %s", step, steps)
		}
	}
	if !slices.ContainsFunc(got.Spans, func(s trace.Span) bool { return s.Stage == "plugin" && strings.Contains(s.Name, "sidecar") }) {
		t.Error("the admission plugin's call is not there")
	}
}

// deletion deletes a pod of a node, and checks the timeline of that.
func deletion(t *testing.T, c *harness.Cluster, traces *api.Client, pod record.Ref, node string) {
	t.Helper()
	if err := c.Server.Client(t).CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	stops := []string{"hook preStop main", "stop main", "stop sidecar"}
	var late []string
	if node != c.Server.NodeName() {
		late = stops
	}
	got := settled(t, traces, "pods", pod.Namespace, pod.Name, late...)
	if got.Verb != "delete" || got.Outcome != "deleted" || got.Before != "ready" {
		t.Errorf("%s, %s; before: %s", got.SetOff, got.Outcome, got.Before)
	}
	if got.Covered < 0.95 {
		t.Errorf("the critical path explains only %.1f %%", 100*got.Covered)
	}
	var names []string
	for _, s := range got.Spans {
		if s.Object == pod && s.Parent == 0 && !s.Wait {
			names = append(names, strings.TrimSpace(string(s.Stage)+" "+s.Name))
		}
	}
	for _, want := range stops {
		if n := strings.Count(strings.Join(names, ","), want); n != 1 {
			t.Errorf("%s is there %d times: %s", want, n, names)
		}
	}
	if first, last := names[0], names[len(names)-1]; first != "request delete" || last != "request delete" {
		t.Errorf("it goes from %s to %s", first, last)
	}
	if why := c.Server.RunBinary(t, "why", "pod/"+pod.Name, "-n", pod.Namespace).Stdout; !strings.Contains(why, "deleted it") {
		t.Errorf("kubelith why of the deleted pod: %s", why)
	}
}

// testRights: a timeline has what its reader may get, from a Secret nothing but its name, and reports what it does not
// show.
func testRights(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	const value = "correct-horse-battery"
	s.Kubectl(t, "create", "secret", "generic", "key", "-n", ns, "--from-literal=password="+value)
	s.Kubectl(t, "create", "serviceaccount", "reader", "-n", ns)
	s.Kubectl(t, "create", "role", "deployments", "-n", ns, "--verb=get", "--resource=deployments")
	s.Kubectl(t, "create", "rolebinding", "deployments", "-n", ns, "--role=deployments", "--serviceaccount="+ns+":reader")
	s.Deploy(t, harness.Pod(ns, "web", harness.Shell("sleep 1000")...), 1)
	admin, err := api.NewClient(s.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	whole := settled(t, admin, "deployments.apps", ns, "web")

	token := strings.TrimSpace(s.Kubectl(t, "create", "token", "reader", "-n", ns))
	cfg := s.RESTConfig(t)
	cfg.CertData, cfg.KeyData, cfg.CertFile, cfg.KeyFile, cfg.BearerToken = nil, nil, "", "", token
	reader, err := api.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	part, err := reader.Timeline(t.Context(), "deployments.apps", ns, "web", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(part.Spans) >= len(whole.Spans) || slices.ContainsFunc(part.Spans, func(s trace.Span) bool { return s.Object.Resource != "deployments.apps" }) {
		t.Errorf("with the right to get the Deployment alone: %d of %d stages", len(part.Spans), len(whole.Spans))
	}
	if len(part.Notices) == 0 || !strings.Contains(part.Notices[0], "not shown") {
		t.Errorf("notices: %q", part.Notices)
	}
	if _, err := reader.Timeline(t.Context(), "pods", ns, "any", 0); !apierrors.IsForbidden(err) {
		t.Errorf("a pod: %v", err)
	}
	for _, format := range []string{"text", "json", "html"} {
		r := s.RunBinary(t, "trace", "secret/key", "-n", ns, "-o", format)
		if r.Code != 0 || !strings.Contains(r.Stdout, "key") || strings.Contains(r.Stdout, value) || strings.Contains(r.Stdout, "Y29ycmVjdC1ob3JzZS1iYXR0ZXJ5") {
			t.Errorf("-o %s of a Secret: exit code %d, %s %.300s", format, r.Code, r.Stderr, r.Stdout)
		}
	}
	for name, args := range map[string][]string{
		"an unknown object": {"trace", "pod/nobody", "-n", ns},
		"an unknown type":   {"trace", "pood/web", "-n", ns},
	} {
		if r := s.RunBinary(t, args...); r.Code == 0 || strings.Count(strings.TrimSpace(r.Stderr), "\n") != 0 || r.Stderr == "" {
			t.Errorf("%s: exit code %d, %q", name, r.Code, r.Stderr)
		}
	}
	refused(t, s, ns)
}

// refused: why answers for what was never created.
func refused(t *testing.T, s *harness.Server, ns string) {
	t.Helper()
	s.Kubectl(t, "create", "quota", "none", "-n", ns, "--hard=configmaps=0")
	s.Kubectl(t, "wait", "-n", ns, "--for=jsonpath={.status.hard.configmaps}=0", "quota/none", harness.Timeout(100*time.Second))
	harness.Eventually(t, 10*time.Second, "admission to know the quota", func() error { // by its own watch
		if r := s.TryKubectl(t, "create", "configmap", "probe", "-n", ns, "--dry-run=server"); r.Code == 0 || !strings.Contains(r.Stderr, "exceeded quota") {
			return fmt.Errorf("a ConfigMap beyond it: exit code %d, %s", r.Code, r.Stderr)
		}
		return nil
	})
	if r := s.TryKubectl(t, "create", "configmap", "settings", "-n", ns); r.Code == 0 {
		t.Fatal("created beyond the quota")
	}
	if r := s.TryKubectl(t, "create", "configmap", "other", "-n", ns, "--as=system:serviceaccount:"+ns+":reader"); r.Code == 0 {
		t.Fatal("created without the right")
	}
	for object, want := range map[string]string{"settings": "ResourceQuota none is used up", "other": "cannot create"} {
		if r := s.RunBinary(t, "why", "configmap/"+object, "-n", ns); !strings.Contains(r.Stdout, "refused") || !strings.Contains(r.Stdout, want) {
			t.Errorf("why configmap/%s: %s", object, r.Stdout)
		}
	}
}

// TestManyPods: the recorder stays in its bound, and the newest starts are there.
func TestManyPods(t *testing.T) {
	s := harness.Start(t, harness.Options{
		Args: []string{"--trace-memory=1"}, Disable: []string{"kubelet", "containerd", "proxy", "dns"}, NoWait: true, NoTestImage: true,
	})
	s.WaitAPI(t)
	// A Node without a machine: without any, the scheduler tries each pod again and again, and the oldest one has new
	// records.
	if _, err := s.Client(t).CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "none"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ns := s.Namespace(t)
	traces, err := api.NewClient(s.RESTConfig(t))
	if err != nil {
		t.Fatal(err)
	}
	const pods = 500 // without a node that would run them: what fills the record are their requests and attempts
	pod := harness.Pod(ns, "many", harness.Shell("sleep 1000")...)
	pod.Spec.NodeSelector = map[string]string{"no": "where"}
	for i := range pods {
		pod.Name = fmt.Sprintf("many-%d", i)
		s.Create(t, pod)
	}
	stats, err := traces.Stats(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if u := stats.Usage; u.Bytes > u.Limit || u.Limit != 1<<20 || u.Dropped == 0 {
		t.Errorf("the recorder: %+v", u)
	}
	if _, err := traces.Timeline(t.Context(), "pods", ns, pod.Name, 0); err != nil {
		t.Errorf("the newest pod: %v", err)
	}
	if _, err := traces.Timeline(t.Context(), "pods", ns, "many-0", 0); !apierrors.IsNotFound(err) {
		t.Errorf("the oldest pod: %v", err)
	}
	if r := s.RunBinary(t, "trace", "pod/many-0", "-n", ns); r.Code == 0 || strings.Count(strings.TrimSpace(r.Stderr), "\n") != 0 {
		t.Errorf("kubelith trace of it: exit code %d, %q", r.Code, r.Stderr)
	}
}
