package why

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

// aPod is a pod on node-1, created a minute ago, with one container; change makes it another.
func aPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "uid-web", CreationTimestamp: before(time.Minute)},
		Spec: corev1.PodSpec{NodeName: "node-1", RestartPolicy: corev1.RestartPolicyAlways, SchedulerName: corev1.DefaultSchedulerName,
			Containers: []corev1.Container{{Name: "app", Image: "registry.test/app:1"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue, LastTransitionTime: before(50 * time.Second)}}},
	}
	if change != nil {
		change(p)
	}
	return p
}

// state sets the state of the pod's container.
func state(s, last corev1.ContainerState, restarts int32, ready bool) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		started := s.Running != nil
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "app", State: s, LastTerminationState: last, RestartCount: restarts, Ready: ready, Started: &started, ContainerID: "containerd://1"}}
		if ready {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: before(40 * time.Second)})
		}
	}
}

func waitsFor(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

func runsFor(d time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: before(d)}}
}

// ended is a run that lasted and ended some time ago.
func ended(reason string, code int32, lasted, ago time.Duration) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code, StartedAt: before(ago + lasted), FinishedAt: before(ago), ContainerID: "containerd://1"}}
}

func all(changes ...func(*corev1.Pod)) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, c := range changes {
			c(p)
		}
	}
}

// podEvent is an Event about the pod, or about its container app if field.
func podEvent(reason, text string, ago time.Duration, field bool) *corev1.Event {
	e := event("web", "uid-web", "Warning", reason, text, ago)
	e.Name += text[:min(len(text), 8)]
	if field {
		e.InvolvedObject.FieldPath = "spec.containers{app}"
	}
	return e
}

func readyNode(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-node"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: before(time.Hour)}}}}
}

func TestPods(t *testing.T) {
	none := corev1.ContainerState{}
	backOff := waitsFor("CrashLoopBackOff", "back-off 10s restarting failed container")
	liveness := func(p *corev1.Pod) {
		p.Spec.Containers[0].LivenessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1}
	}
	readiness := func(p *corev1.Pod) {
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{}}}
	}
	limited := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("32Mi")}
	}
	waitingFor := func(c corev1.ConditionStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.Conditions[0].Status = c }
	}
	settings := func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}, Items: []corev1.KeyToPath{{Key: "colour"}}}}}}
	}
	deleted := func(ago time.Duration, grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			at := metav1.NewTime(before(ago).Add(time.Duration(grace) * time.Second))
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		}
	}
	configMap := func(keys ...string) *corev1.ConfigMap {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "settings"}, Data: map[string]string{}}
		for _, k := range keys {
			m.Data[k] = "SECRET"
		}
		return m
	}
	for name, c := range map[string]struct {
		pod    func(*corev1.Pod)
		others []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"ready":                      {state(runsFor(40*time.Second), none, 0, true), nil, Healthy, OK, "[Ready]: True"},
		"ready, with its pull":       {state(runsFor(40*time.Second), none, 0, true), []runtime.Object{podEvent("Pulled", `Successfully pulled image "registry.test/app:1" in 15s (15s including waiting). Image size: 1 bytes.`, 42*time.Second, true)}, Healthy, OK, "in 15s"},
		"ready, with an old failure": {all(readiness, state(runsFor(40*time.Second), none, 0, true)), []runtime.Object{podEvent("Unhealthy", "Readiness probe failed: no", 30*time.Second, true)}, Healthy, OK, "[Ready]: True"},
		"ready again after crashes":  {state(runsFor(5*time.Minute), ended("Error", 1, time.Second, 6*time.Minute), 7, true), nil, Healthy, OK, "7; the last run ended with exit code 1"},
		"up for 3 days, then again":  {state(runsFor(20*time.Second), ended("Error", 1, 72*time.Hour, 21*time.Second), 7, true), nil, Healthy, OK, "restartCount"},
		"between two crashes":        {state(runsFor(2*time.Second), ended("Error", 1, 5*time.Second, 12*time.Second), 3, true), nil, Broken, CrashLoop, "this run is not longer than the last"},
		"after the first crash":      {state(runsFor(2*time.Second), ended("Error", 1, 5*time.Second, 3*time.Second), 1, true), nil, Healthy, OK, "exit code 1"},
		"crash loop":                 {state(backOff, ended("Error", 3, time.Second, 5*time.Second), 4, false), nil, Broken, CrashLoop, "fake logs"},
		"exit code 137 is not OOM":   {all(limited, state(backOff, ended("Error", 137, time.Second, 5*time.Second), 4, false)), nil, Broken, CrashLoop, "exit code 137"},
		"OOM":                        {all(limited, state(backOff, ended("OOMKilled", 137, time.Second, 5*time.Second), 4, false)), nil, Broken, OOMKilled, "32Mi"},
		"OOM without a limit":        {state(backOff, ended("OOMKilled", 137, time.Second, 5*time.Second), 4, false), nil, Broken, OOMKilled, "not set"},
		"killed by its probe": {all(liveness, state(backOff, ended("Error", 143, 10*time.Second, 5*time.Second), 4, false)), []runtime.Object{
			podEvent("Killing", "Container app failed liveness probe, will be restarted", 6*time.Second, true), podEvent("Unhealthy", "Liveness probe failed: connection refused", 6*time.Second, true)}, Broken, LivenessKills, "connection refused"},
		"a kill of an earlier run": {all(liveness, state(backOff, ended("Error", 1, 10*time.Second, 5*time.Second), 4, false)), []runtime.Object{
			podEvent("Killing", "Container app failed liveness probe, will be restarted", 26*time.Second, true)}, Broken, CrashLoop, "exit code 1"},
		"not ready": {all(readiness, state(runsFor(40*time.Second), none, 0, false)), []runtime.Object{podEvent("Unhealthy", "Readiness probe failed: no leader", time.Second, true)}, Broken, ReadinessFailing, "no leader"},
		"not started": {all(func(p *corev1.Pod) {
			p.Spec.Containers[0].StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 3}
		}, state(runsFor(40*time.Second), none, 0, false), func(p *corev1.Pod) { *p.Status.ContainerStatuses[0].Started = false }),
			[]runtime.Object{podEvent("Unhealthy", "Startup probe failed: no cache", time.Second, true)}, Broken, StartupProbeFailing, "no cache"},
		"not ready yet":               {all(readiness, state(runsFor(time.Second), none, 0, false)), []runtime.Object{podEvent("Unhealthy", "Readiness probe failed: no leader", time.Second, true)}, Progressing, InProgress, "no leader"},
		"not ready, another's Event":  {all(readiness, state(runsFor(time.Second), none, 0, false)), []runtime.Object{podEvent("Unhealthy", "Readiness probe failed: no leader", 30*time.Second, true)}, Progressing, InProgress, "started"},
		"no such program":             {state(backOff, startError(`failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "/srv": stat /srv: no such file or directory`), 1, false), nil, Broken, ExecutableNotFound, "/srv"},
		"may not be executed":         {state(backOff, startError(`failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: exec: "/etc": permission denied`), 1, false), nil, Broken, PermissionDenied, "/etc"},
		"a ConfigMap is missing":      {all(settings, waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), nil, Broken, ConfigMapMissing, "does not exist"},
		"a key is missing":            {all(settings, waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{configMap("color")}, Broken, KeyMissing, "has the keys: color"},
		"a ConfigMap is there":        {all(settings, waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{configMap("colour")}, Progressing, InProgress, "ContainerCreating"},
		"a ConfigMap is gone by now":  {all(settings, state(runsFor(40*time.Second), none, 0, true)), nil, Healthy, OK, "[Ready]: True"},
		"no network":                  {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedCreatePodSandBox", `Failed to create pod sandbox: rpc error: code = Unknown desc = failed to setup network for sandbox "1": plugin type="kubelith-cni" failed (add): no address for the pod: no IP addresses available in range set`, 15*time.Second, false)}, Broken, NetworkFailing, "kubelith-cni"},
		"no sandbox":                  {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedCreatePodSandBox", "1: no runtime", 15*time.Second, false), podEvent("FailedCreatePodSandBox", "2: no runtime", time.Second, false)}, Broken, SandboxFailing, "no runtime"},
		"no sandbox, had no volume":   {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedMount", `MountVolume.SetUp failed for volume "x" : failed to sync configmap cache`, 16*time.Second, false), podEvent("FailedCreatePodSandBox", "1: no runtime", 15*time.Second, false)}, Broken, SandboxFailing, "no runtime"},
		"no sandbox at first":         {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedCreatePodSandBox", "1: no runtime", time.Second, false)}, Progressing, SandboxFailing, "no runtime"},
		"a volume fails once":         {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedMount", `MountVolume.SetUp failed for volume "kube-api-access-1" : failed to sync configmap cache: timed out waiting for the condition`, time.Second, false)}, Progressing, VolumeFailing, "timed out"},
		"an authorizer is behind":     {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedMount", `Unable to attach or mount volumes: persistentvolumeclaims "data" is forbidden: no relationship found between node 'node-1' and this object`, time.Second, false)}, Progressing, InProgress, "ContainerCreating"},
		"a volume fails":              {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedMount", `MountVolume.SetUp failed for volume "x" : no such device`, 30*time.Second, false)}, Broken, VolumeFailing, "no such device"},
		"had no network":              {all(waitingFor("False"), state(waitsFor("ContainerCreating", ""), none, 0, false)), []runtime.Object{podEvent("FailedCreatePodSandBox", `failed to setup network for sandbox "1": plugin type="x" failed (add): no`, 5*time.Minute, false)}, Progressing, InProgress, "ContainerCreating"},
		"being deleted":               {deleted(time.Second, 30), nil, Progressing, Deleting, "30 s to end"},
		"should be gone":              {deleted(5*time.Minute, 30), nil, Broken, KillFailing, "deletion was requested"},
		"its hook failed":             {deleted(time.Second, 30), []runtime.Object{podEvent("FailedPreStopHook", "PreStopHook failed", time.Second, true)}, Broken, PreStopFailed, "PreStopHook failed"},
		"evicted":                     {failed("Evicted", "The node was low on resource: memory. "), nil, Broken, Evicted, "low on resource: memory"},
		"out of time":                 {failed("DeadlineExceeded", "Pod was active on the node longer than the specified deadline"), nil, Broken, DeadlineExceeded, "DeadlineExceeded"},
		"not admitted":                {failed("OutOfcpu", "Node didn't have enough resource: cpu"), nil, Broken, NodeRefused, "OutOfcpu"},
		"completed":                   {all(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, state(ended("Completed", 0, time.Second, time.Second), none, 0, false)), nil, Healthy, Completed, "exit code 0"},
		"gated":                       {all(unbound, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.org/gate"}} }), nil, Broken, SchedulingGated, "example.org/gate"},
		"another scheduler":           {all(unbound, func(p *corev1.Pod) { p.Spec.SchedulerName = "mine" }), nil, Broken, SchedulerUnknown, "mine"},
		"no scheduler":                {unbound, nil, Broken, SchedulerSilent, "no PodScheduled"},
		"just created":                {all(unbound, func(p *corev1.Pod) { p.CreationTimestamp = before(time.Second) }), nil, Progressing, InProgress, "created"},
		"makes room":                  {all(refused("0/1 nodes are available"), func(p *corev1.Pod) { p.Status.NominatedNodeName = "node-1" }), nil, Progressing, InProgress, "nominatedNodeName"},
		"refused, nodes not compared": {refused("0/1 nodes are available: 1 Insufficient cpu. preemption: none"), nil, Broken, InsufficientResources, "Insufficient cpu"},
		"refused for two reasons":     {refused("0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint(s)."), nil, Broken, SchedulingMixed, "untolerated"},
		"refused by a plugin":         {refused("0/1 nodes are available: 1 the licence is used up."), nil, Broken, SchedulerRefuses, "licence"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{aPod(c.pod), readyNode("node-1")}, c.others...)...)
			a := ask(t, r, podTarget("web"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
			if a.proves("SECRET") {
				t.Errorf("it shows a value: %+v", a)
			}
			if slices.ContainsFunc(a.NotBecause, func(n RuledOut) bool { return n.Code == a.Code }) {
				t.Errorf("%s is the cause and ruled out", a.Code)
			}
		})
	}
}

func startError(message string) corev1.ContainerState {
	s := ended("StartError", 128, 0, time.Second)
	s.Terminated.Message = message
	return s
}

func failed(reason, message string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.Phase, p.Status.Reason, p.Status.Message = corev1.PodFailed, reason, message
	}
}

func unbound(p *corev1.Pod) {
	p.Spec.NodeName, p.Status = "", corev1.PodStatus{Phase: corev1.PodPending}
}

func refused(message string) func(*corev1.Pod) {
	return all(unbound, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: "Unschedulable", Message: message, LastTransitionTime: before(time.Minute)}}
	})
}

// Every step of a pod on a node that does not answer is about the node.
func TestPodOnALostNode(t *testing.T) {
	node := readyNode("node-1")
	node.Status.Conditions[0].Status, node.Status.Conditions[0].Reason = corev1.ConditionUnknown, "NodeStatusUnknown"
	at := before(5 * time.Minute)
	for name, change := range map[string]func(*corev1.Pod){
		"running": state(runsFor(time.Minute), corev1.ContainerState{}, 0, false),
		"deleted": func(p *corev1.Pod) { p.DeletionTimestamp = &at },
	} {
		r, _ := reader(t, aPod(change), node)
		a := ask(t, r, podTarget("web"))
		if a.Code != NodeNotReady || len(a.Chain) != 2 || a.Chain[1].String() != "node/node-1" {
			t.Errorf("%s: got %+v", name, a)
		}
	}
	r, _ := reader(t, aPod(state(runsFor(time.Minute), corev1.ContainerState{}, 0, false)))
	if a := ask(t, r, podTarget("web")); a.Code != NodeGone {
		t.Errorf("got %+v", a)
	}
}

// The nodes that the pod chooses decide, and of them the nearest.
func TestVerdictsToCause(t *testing.T) {
	v := func(node, plugin string, reasons ...string) Verdict {
		return Verdict{Node: node, Plugin: plugin, Reasons: reasons}
	}
	tainted := readyNode("node-2")
	tainted.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}
	cordoned := readyNode("node-3")
	cordoned.Spec.Unschedulable, cordoned.Spec.Taints = true, []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
	for name, c := range map[string]struct {
		verdicts []Verdict
		code     Code
		proof    string
	}{
		"full":                  {[]Verdict{v("node-1", "NodeResourcesFit", "Insufficient cpu"), v("node-2", "NodeResourcesFit", "Insufficient cpu")}, InsufficientResources, "0 of 0 cpu free"},
		"cordoned, so tainted":  {[]Verdict{v("node-1", "NodeAffinity", "no"), v("node-3", "NodeUnschedulable", "no"), v("node-3", "TaintToleration", "no")}, NodesCordoned, "node/node-3"},
		"the chosen is tainted": {[]Verdict{v("node-1", "NodeAffinity", "no"), v("node-2", "TaintToleration", "no")}, TaintNotTolerated, "taint gpu:NoSchedule"},
		"one is full, one not":  {[]Verdict{v("node-1", "NodeResourcesFit", "Insufficient cpu"), v("node-2", "TaintToleration", "no")}, SchedulingMixed, "node/node-2"},
		"one comes nearer":      {[]Verdict{v("node-1", "NodeResourcesFit", "Insufficient cpu"), v("node-1", "NodePorts", "no"), v("node-2", "TaintToleration", "no")}, TaintNotTolerated, "NodePorts"},
		"a node would do":       {[]Verdict{v("node-1", ""), v("node-2", "TaintToleration", "no")}, SchedulerRefuses, "would take the pod"},
		"no affinity":           {[]Verdict{v("node-1", "InterPodAffinity", "node(s) didn't match pod affinity rules"), v("node-2", "TaintToleration", "no"), v("node-2", "NodePorts", "no")}, PodAffinityUnmet, "InterPodAffinity"},
	} {
		r, _ := reader(t, aPod(refused("0/2 nodes are available")), readyNode("node-1"), tainted, cordoned)
		r.Placement = func(context.Context, kubernetes.Interface, *corev1.Pod, []corev1.Node, []corev1.Pod) ([]Verdict, error) {
			return c.verdicts, nil
		}
		a := ask(t, r, podTarget("web"))
		if a.Code != c.code || !a.proves(c.proof) {
			t.Errorf("%s: want %s with %q, got %+v", name, c.code, c.proof, a)
		}
	}
}

// TestNoNodes: without a node there is nothing to compare.
func TestNoNodes(t *testing.T) {
	r, _ := reader(t, aPod(refused("no nodes available to schedule pods")))
	r.Placement = func(context.Context, kubernetes.Interface, *corev1.Pod, []corev1.Node, []corev1.Pod) ([]Verdict, error) {
		return nil, nil
	}
	if a := ask(t, r, podTarget("web")); a.Code != NoNodes || !a.proves("empty") {
		t.Errorf("got %+v", a)
	}
}

// TestNodes: what a Ready node reports beside that.
func TestNodes(t *testing.T) {
	pressed, cordoned := readyNode("node-1"), readyNode("node-1")
	pressed.Status.Conditions = append(pressed.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeDiskPressure, Status: corev1.ConditionTrue, Reason: "KubeletHasDiskPressure"})
	cordoned.Spec.Unschedulable = true
	for name, c := range map[string]struct {
		node   *corev1.Node
		status Status
		code   Code
		proof  string
	}{
		"ready":    {readyNode("node-1"), Healthy, OK, "True"},
		"pressed":  {pressed, Broken, NodePressure, "KubeletHasDiskPressure"},
		"cordoned": {cordoned, Healthy, NodeCordoned, "true"},
	} {
		r, _ := reader(t, c.node)
		a := ask(t, r, target(corev1.SchemeGroupVersion.WithKind("Node"), "nodes", "", "node-1"))
		if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
			t.Errorf("%s: want %s %s with %q, got %+v", name, c.status, c.code, c.proof, a)
		}
	}
}

// The texts are those of containerd 2.4 and the kubelet.
func TestPullFailures(t *testing.T) {
	for text, want := range map[string]Code{
		`failed to pull and unpack image "localhost:5000/team/web:1": failed to resolve image: localhost:5000/team/web:1: not found`:                                    ImageNotFound,
		`failed to pull and unpack image "localhost:5000/elsewhere/web:1": no match for platform in manifest: not found`:                                                ImageArchitecture,
		`failed to do request: Head "http://localhost:5999/v2/team/web/manifests/1": dial tcp 127.0.0.1:5999: connect: connection refused`:                              RegistryUnreachable,
		`failed to do request: Head "https://registry-1.docker.io/v2/x/y/manifests/1": dial tcp: lookup registry-1.docker.io on 10.0.0.1:53: no such host`:              RegistryUnreachable,
		`failed to do request: Head "https://10.0.0.9/v2/x/manifests/1": http: server gave HTTP response to HTTPS client`:                                               RegistryUnreachable,
		`failed to resolve image: unexpected status from HEAD request to http://localhost:5000/v2/private/web/manifests/1: 401 Unauthorized`:                            PullDenied,
		`failed to resolve image: pull access denied, repository does not exist or may require authorization: server message: insufficient_scope: authorization failed`: PullDenied,
		`failed to resolve image: unexpected status from HEAD request to http://localhost:5000/v2/limited/web/manifests/1: 429 Too Many Requests`:                       RegistryLimit,
		`failed to resolve image: unexpected status from HEAD request to http://localhost:5000/v2/x/manifests/1: 503 Service Unavailable`:                               RegistryUnreachable,
		`failed to extract layer sha256:1: write /x: no space left on device`:                                                                                           PullFailed,
	} {
		if got := pullFailure(text); got != want {
			t.Errorf("%s, want %s: %s", got, want, text)
		}
	}
	for image, want := range map[string]string{"web": "docker.io", "team/web:1": "docker.io", "localhost:5000/web": "localhost:5000", "localhost/web": "localhost", "quay.io/x/y@sha256:1": "quay.io"} {
		if got := registryOf(image); got != want {
			t.Errorf("%s is of %s, want %s", image, got, want)
		}
	}
}

// A Secret's values never leave the reader, and the credentials are judged by whether they are there.
func TestPullSecrets(t *testing.T) {
	denied := all(state(waitsFor("ImagePullBackOff", "Back-off: ErrImagePull: unexpected status: 401 Unauthorized"), corev1.ContainerState{}, 0, false))
	with := all(denied, func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "registry"}} })
	secret := func(kind corev1.SecretType) *corev1.Secret {
		return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "registry"}, Type: kind, Data: map[string][]byte{".dockerconfigjson": []byte("hunter2")}}
	}
	for name, c := range map[string]struct {
		pod    func(*corev1.Pod)
		others []runtime.Object
		code   Code
		cause  string
	}{
		"none":           {denied, nil, PullSecretMissing, "has no imagePullSecrets"},
		"absent":         {with, nil, PullSecretMissing, "registry does not exist"},
		"another type":   {with, []runtime.Object{secret(corev1.SecretTypeOpaque)}, PullSecretMissing, "of type Opaque"},
		"there, refused": {with, []runtime.Object{secret(corev1.SecretTypeDockerConfigJson)}, PullSecretWrong, "with the credentials in the pull secret registry"},
	} {
		r, _ := reader(t, append([]runtime.Object{aPod(c.pod), readyNode("node-1")}, c.others...)...)
		a := ask(t, r, podTarget("web"))
		if a.Code != c.code || !strings.Contains(a.Cause, c.cause) || a.proves("hunter2") {
			t.Errorf("%s: want %s with %q, got %+v", name, c.code, c.cause, a)
		}
	}
}

// The answer for a healthy pod has what its start took.
func TestStartTime(t *testing.T) {
	pull := podEvent("Pulled", `Successfully pulled image "registry.test/app:1" in 15s (15s including waiting). Image size: 1 bytes.`, 42*time.Second, true)
	r, _ := reader(t, aPod(state(runsFor(40*time.Second), corev1.ContainerState{}, 0, true)), readyNode("node-1"), pull)
	if a := ask(t, r, podTarget("web")); !strings.HasSuffix(a.Cause, "20s after its creation, 75 % of it for pulling images") {
		t.Errorf("got %q", a.Cause)
	}
}
