package why

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The texts are those of the API server.
func TestRefusals(t *testing.T) {
	for text, want := range map[string]Code{
		`pods "web-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2`:                                                                                               QuotaExceeded,
		`pods "web-1" is forbidden: failed quota: cpu: must specify requests.cpu for: web`:                                                                                                               QuotaNeedsRequests,
		`pods "web-1" is forbidden: maximum memory usage per Container is 64Mi, but limit is 128Mi`:                                                                                                      LimitRangeDenied,
		`pods "web-1" is forbidden: [minimum cpu usage per Pod is 1, but request is 10m, maximum cpu usage per Pod is 2, but limit is 3]`:                                                                LimitRangeDenied,
		`pods "web-1" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "web" must set securityContext.allowPrivilegeEscalation=false)`:               PodSecurityDenied,
		`admission webhook "check.example.org" denied the request: no team label`:                                                                                                                        WebhookDenied,
		`admission webhook "check.example.org" denied the request without explanation`:                                                                                                                   WebhookDenied,
		`Internal error occurred: failed calling webhook "check.example.org": failed to call webhook: Post "https://check.ns.svc:443/?timeout=10s": dial tcp 10.43.0.9:443: connect: connection refused`: WebhookUnreachable,
		`pods "web-1" is forbidden: ValidatingAdmissionPolicy 'teams' with binding 'teams' denied request: no team label`:                                                                                PolicyDenied,
		`pods "web-1" is forbidden: error looking up service account ns/robot: serviceaccount "robot" not found`:                                                                                         ServiceAccountMissing,
		`pods "web-1" is forbidden: no PriorityClass with name urgent was found`:                                                                                                                         PriorityClassMissing,
		`pods "web-1" is forbidden: unable to create new content in namespace ns because it is being terminated`:                                                                                         CreateRefused,
	} {
		f := refusedBy(Object{Type: "replicaset", Name: "web"}, "pod", text)
		if f.Code != want || len(f.Remedy) == 0 {
			t.Errorf("%s, want %s: %s: %s", f.Code, want, text, f.Cause)
		}
	}
}

var web = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}

func meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Generation: 1, CreationTimestamp: before(time.Minute)}
}

func ownedBy(kind, name string, m *metav1.ObjectMeta) {
	yes := true
	m.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, UID: types.UID("uid-" + name), Controller: &yes}}
	m.Labels = map[string]string{"app": "web"}
}

// podOf is a pod of a controller.
func podOf(kind, owner, name string, change func(*corev1.Pod)) *corev1.Pod {
	p := aPod(change)
	p.Name, p.UID = name, types.UID("uid-"+name)
	labels := p.Labels
	ownedBy(kind, owner, &p.ObjectMeta)
	for k, v := range labels {
		p.Labels[k] = v
	}
	return p
}

func aDeployment(replicas int32, s appsv1.DeploymentStatus, change func(*appsv1.Deployment)) *appsv1.Deployment {
	d := &appsv1.Deployment{ObjectMeta: meta("web"), Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: web}, Status: s}
	d.Annotations = map[string]string{revision: "2"}
	d.Status.ObservedGeneration = 1
	if change != nil {
		change(d)
	}
	return d
}

func aReplicaSet(name, rev string, replicas int32, s appsv1.ReplicaSetStatus) *appsv1.ReplicaSet {
	rs := &appsv1.ReplicaSet{ObjectMeta: meta(name), Spec: appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: web}, Status: s}
	ownedBy("Deployment", "web", &rs.ObjectMeta)
	rs.Annotations = map[string]string{revision: rev}
	rs.Status.ObservedGeneration = 1
	return rs
}

func TestDeployments(t *testing.T) {
	none := corev1.ContainerState{}
	ready, crash := state(runsFor(40*time.Second), none, 0, true), state(waitsFor("CrashLoopBackOff", "back-off"), ended("Error", 3, time.Second, 5*time.Second), 4, false)
	starting := state(waitsFor("ContainerCreating", ""), none, 0, false)
	all1 := appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1,
		Conditions: []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: "True", LastTransitionTime: before(time.Minute)}}}
	none1 := appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 1, UnavailableReplicas: 1}
	late := func(d *appsv1.Deployment) {
		d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentProgressing, Status: "False", Reason: "ProgressDeadlineExceeded", Message: "too long"}}
	}
	one := appsv1.ReplicaSetStatus{Replicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}
	refusedStatus := appsv1.ReplicaSetStatus{Conditions: []appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: "True", Reason: "FailedCreate",
		Message: `pods "web-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2`}}}
	zero, tenth := intstr.FromInt32(0), intstr.FromString("10%")
	for name, c := range map[string]struct {
		d      *appsv1.Deployment
		others []runtime.Object
		status Status
		code   Code
		proof  string
		chain  string
	}{
		"available":        {aDeployment(1, all1, nil), []runtime.Object{aReplicaSet("web-b", "2", 1, one), podOf("ReplicaSet", "web-b", "web-b-1", ready)}, Healthy, OK, "[Available]: True", ""},
		"a pod crashes":    {aDeployment(1, none1, nil), []runtime.Object{aReplicaSet("web-b", "2", 1, appsv1.ReplicaSetStatus{Replicas: 1}), podOf("ReplicaSet", "web-b", "web-b-1", crash)}, Broken, CrashLoop, "0 of 1 available", "pod/web-b-1"},
		"starting":         {aDeployment(1, none1, nil), []runtime.Object{aReplicaSet("web-b", "2", 1, appsv1.ReplicaSetStatus{Replicas: 1}), podOf("ReplicaSet", "web-b", "web-b-1", starting)}, Progressing, InProgress, "0 of 1", "pod/web-b-1"},
		"quota":            {aDeployment(1, appsv1.DeploymentStatus{}, nil), []runtime.Object{aReplicaSet("web-b", "2", 1, refusedStatus)}, Broken, QuotaExceeded, "exceeded quota: few", "replicaset/web-b"},
		"the old serve":    {aDeployment(1, appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}, late), []runtime.Object{aReplicaSet("web-a", "1", 1, one), aReplicaSet("web-b", "2", 1, appsv1.ReplicaSetStatus{Replicas: 1}), podOf("ReplicaSet", "web-a", "web-a-1", ready), podOf("ReplicaSet", "web-b", "web-b-1", crash)}, Broken, CrashLoop, "1 pods of the previous template are ready and serve", "pod/web-b-1"},
		"an old one fails": {aDeployment(1, appsv1.DeploymentStatus{Replicas: 2, UpdatedReplicas: 1, ReadyReplicas: 1, AvailableReplicas: 1}, nil), []runtime.Object{aReplicaSet("web-a", "1", 1, appsv1.ReplicaSetStatus{Replicas: 1}), aReplicaSet("web-b", "2", 1, one), podOf("ReplicaSet", "web-a", "web-a-1", crash), podOf("ReplicaSet", "web-b", "web-b-1", ready)}, Progressing, InProgress, "1 of 1 available", ""},
		"deadline":         {aDeployment(1, none1, late), []runtime.Object{aReplicaSet("web-b", "2", 1, appsv1.ReplicaSetStatus{Replicas: 1})}, Broken, ProgressDeadline, "ProgressDeadlineExceeded", ""},
		"was late": {aDeployment(1, all1, func(d *appsv1.Deployment) {
			d.Status.Conditions = append(d.Status.Conditions, appsv1.DeploymentCondition{Type: appsv1.DeploymentProgressing, Reason: "ProgressDeadlineExceeded"})
		}), []runtime.Object{aReplicaSet("web-b", "2", 1, one)}, Healthy, OK, "1 of 1", ""},
		"paused":                {aDeployment(1, appsv1.DeploymentStatus{Replicas: 1, AvailableReplicas: 1}, func(d *appsv1.Deployment) { d.Spec.Paused = true }), nil, Broken, RolloutPaused, "spec.paused: true", ""},
		"paused, nothing waits": {aDeployment(1, all1, func(d *appsv1.Deployment) { d.Spec.Paused = true }), []runtime.Object{aReplicaSet("web-b", "2", 1, one)}, Healthy, OK, "1 of 1", ""},
		"scaled to zero":        {aDeployment(0, appsv1.DeploymentStatus{}, nil), nil, Healthy, ScaledToZero, "replicas: 0", ""},
		"not seen":              {aDeployment(1, all1, func(d *appsv1.Deployment) { d.Generation = 2 }), nil, Progressing, ObservationBehind, "1; .metadata.generation is 2", ""},
		"another's pod":         {aDeployment(1, all1, nil), []runtime.Object{aReplicaSet("web-b", "2", 1, one), podOf("ReplicaSet", "other", "other-1", crash)}, Healthy, OK, "1 of 1", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{c.d, readyNode("node-1")}, c.others...)...)
			a := ask(t, r, target(appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployments", "ns", "web"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
			if c.chain != "" && (len(a.Chain) == 0 || a.Chain[len(a.Chain)-1].String() != c.chain || a.Chain[0].String() != "deployment/web") {
				t.Errorf("want a chain to %s, got %v", c.chain, a.Chain)
			}
		})
	}
	d := aDeployment(3, appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 1}, late)
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &zero, MaxUnavailable: &tenth}
	r, _ := reader(t, d)
	a := ask(t, r, target(appsv1.SchemeGroupVersion.WithKind("Deployment"), "deployments", "ns", "web"))
	if a.Code != ProgressDeadline || len(a.NotBecause) != 1 || a.NotBecause[0].Code != RolloutNoRoom {
		t.Errorf("got %+v", a)
	}
}

func TestStatefulSets(t *testing.T) {
	none := corev1.ContainerState{}
	ready, crash := state(runsFor(40*time.Second), none, 0, true), state(waitsFor("CrashLoopBackOff", "back-off"), ended("Error", 3, time.Second, 5*time.Second), 4, false)
	set := func(replicas int32, s appsv1.StatefulSetStatus, change func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
		x := &appsv1.StatefulSet{ObjectMeta: meta("web"), Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: web}, Status: s}
		x.Status.ObservedGeneration = 1
		if change != nil {
			change(x)
		}
		return x
	}
	part := int32(1)
	ofRevision := func(rev string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{appsv1.StatefulSetRevisionLabel: rev} }
	}
	failed := event("web", "uid-web", "Warning", "FailedCreate", `create Pod web-0 in StatefulSet web failed error: pods "web-0" is forbidden: error looking up service account ns/robot: serviceaccount "robot" not found`, time.Second)
	for name, c := range map[string]struct {
		set    *appsv1.StatefulSet
		others []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"all ready":   {set(1, appsv1.StatefulSetStatus{Replicas: 1, AvailableReplicas: 1}, nil), []runtime.Object{podOf("StatefulSet", "web", "web-0", ready)}, Healthy, OK, "1 of 1"},
		"predecessor": {set(3, appsv1.StatefulSetStatus{Replicas: 2, AvailableReplicas: 1}, nil), []runtime.Object{podOf("StatefulSet", "web", "web-0", ready), podOf("StatefulSet", "web", "web-1", crash)}, Broken, CrashLoop, "web-2 waits until its predecessor web-1"},
		"partition": {set(2, appsv1.StatefulSetStatus{Replicas: 2, AvailableReplicas: 2, CurrentRevision: "a", UpdateRevision: "b"}, func(s *appsv1.StatefulSet) {
			s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &part}
		}), []runtime.Object{podOf("StatefulSet", "web", "web-0", ready)}, Healthy, PartitionHolds, "partition: 1"},
		"an old template":     {set(1, appsv1.StatefulSetStatus{Replicas: 1, UpdateRevision: "b"}, nil), []runtime.Object{podOf("StatefulSet", "web", "web-0", all(crash, ofRevision("a")))}, Broken, CrashLoop, "the newest template is b"},
		"refused":             {set(1, appsv1.StatefulSetStatus{}, nil), []runtime.Object{failed}, Broken, ServiceAccountMissing, "robot"},
		"was refused":         {set(1, appsv1.StatefulSetStatus{Replicas: 1, AvailableReplicas: 1}, nil), []runtime.Object{failed, podOf("StatefulSet", "web", "web-0", ready)}, Healthy, OK, "1 of 1"},
		"about to be created": {set(1, appsv1.StatefulSetStatus{}, nil), nil, Progressing, InProgress, "0 of 1"},
		"scaled to zero":      {set(0, appsv1.StatefulSetStatus{}, nil), nil, Healthy, ScaledToZero, "0"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{c.set, readyNode("node-1")}, c.others...)...)
			a := ask(t, r, target(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), "statefulsets", "ns", "web"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
		})
	}
}

func TestDaemonSets(t *testing.T) {
	node, tainted := readyNode("node-1"), readyNode("node-2")
	tainted.Labels = map[string]string{"disk": "ssd"}
	tainted.Spec.Taints = []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}, {Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}
	set := func(s appsv1.DaemonSetStatus) *appsv1.DaemonSet {
		d := &appsv1.DaemonSet{ObjectMeta: meta("web"), Spec: appsv1.DaemonSetSpec{Selector: web}, Status: s}
		d.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "ssd"}
		d.Status.ObservedGeneration = 1
		return d
	}
	for name, c := range map[string]struct {
		set    *appsv1.DaemonSet
		status Status
		code   Code
		proofs []string
	}{
		"none matches": {set(appsv1.DaemonSetStatus{}), Broken, NoNodeMatches, []string{"node/node-1: does not match the nodeSelector disk=ssd", "node/node-2: has the taint gpu:NoSchedule"}},
		"one matches":  {set(appsv1.DaemonSetStatus{DesiredNumberScheduled: 1, CurrentNumberScheduled: 1, NumberAvailable: 1}), Healthy, OK, []string{"node/node-1: does not match"}},
		"starting":     {set(appsv1.DaemonSetStatus{DesiredNumberScheduled: 1}), Progressing, InProgress, []string{"1 nodes want a pod, 0 have one"}},
	} {
		r, _ := reader(t, c.set, node, tainted)
		a := ask(t, r, target(appsv1.SchemeGroupVersion.WithKind("DaemonSet"), "daemonsets", "ns", "web"))
		if a.Status != c.status || a.Code != c.code {
			t.Errorf("%s: want %s %s, got %+v", name, c.status, c.code, a)
		}
		for _, proof := range c.proofs {
			if !a.proves(proof) {
				t.Errorf("%s: no %q in %+v", name, proof, a)
			}
		}
	}
}
