package pods

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// node is the only one.
func node(t testing.TB, s *harness.Server) *corev1.Node {
	t.Helper()
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	return &nodes.Items[0]
}

// TestPreemption: serial, because it fills the node.
func TestPreemption(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	for name, value := range map[string]int32{"low": 1, "high": 1000} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: ns + "-" + name}, Value: value}
		if _, err := s.Client(t).SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.TryKubectl(t, "delete", "priorityclass", class.Name) })
	}
	most := resource.NewMilliQuantity(node(t, s).Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	pod := func(name, class string) *corev1.Pod {
		p := harness.Pod(ns, name, "/bin/probe", "sleep")
		p.Spec.PriorityClassName = ns + "-" + class
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *most}
		return p
	}
	low := s.Run(t, pod("low", "low"))
	pid := s.ContainerPID(t, low, "main")
	equal := s.Create(t, pod("equal", "low"))
	s.WaitPod(t, equal, "to wait, being no more important", scheduled(corev1.ConditionFalse, "Insufficient cpu"))
	s.Run(t, pod("high", "high"))
	if harness.Alive(pid) {
		t.Error("the pod of low priority still runs")
	}
	event(t, s, ns, "low", "Preempted", "Preempted by")
}

// TestTaints: serial, because every other pod would feel them.
func TestTaints(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	name := node(t, s).Name
	bystander := s.Run(t, harness.Pod(ns, "bystander", "/bin/probe", "sleep"))
	pid := s.ContainerPID(t, bystander, "main")
	untaint := func() { s.TryKubectl(t, "taint", "node", name, "kubelith.io/test-") }
	t.Cleanup(untaint)

	s.Kubectl(t, "taint", "node", name, "kubelith.io/test=yes:NoSchedule")
	s.WaitPod(t, s.Create(t, harness.Pod(ns, "intolerant", "/bin/probe", "sleep")), "to be refused", scheduled(corev1.ConditionFalse, "taint"))
	tolerant := harness.Pod(ns, "tolerant", "/bin/probe", "sleep")
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: "kubelith.io/test", Operator: corev1.TolerationOpExists}}
	tolerant = s.Run(t, tolerant)
	if !harness.Alive(pid) {
		t.Error("NoSchedule ended a running pod")
	}

	s.Kubectl(t, "taint", "node", name, "kubelith.io/test=yes:NoExecute")
	waitGone(t, s, bystander)
	if harness.Alive(pid) {
		t.Error("the evicted pod's process lives")
	}
	if !harness.Alive(s.ContainerPID(t, tolerant, "main")) {
		t.Error("NoExecute ended a tolerant pod")
	}
	untaint()
	s.WaitRunning(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "intolerant"}})
}

// TestUnschedulable: a pod that fits no node says why, and runs as soon as the node matches.
func TestUnschedulable(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, why string
		change    func(*corev1.PodSpec, string) // given the label that the node will get
	}{
		{"selector", "node affinity/selector", func(p *corev1.PodSpec, label string) {
			p.NodeSelector = map[string]string{label: "yes"}
		}},
		{"affinity", "node affinity/selector", func(p *corev1.PodSpec, label string) {
			p.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
					MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: []string{"yes"}}},
				}}},
			}}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			label := "test.kubelith.io/" + ns
			pod := harness.Pod(ns, tc.name, "/bin/probe", "sleep")
			tc.change(&pod.Spec, label)
			pod = s.Create(t, pod)
			s.WaitPod(t, pod, "to be unschedulable", scheduled(corev1.ConditionFalse, tc.why))
			s.Kubectl(t, "label", "node", node(t, s).Name, label+"=yes")
			s.WaitRunning(t, pod)
		})
	}
}

// TestAntiAffinity keeps two pods apart, which on one node means that the second waits.
func TestAntiAffinity(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := func(name string) *corev1.Pod {
		p := harness.Pod(ns, name, "/bin/probe", "sleep")
		p.Labels = map[string]string{"keep": "apart"}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}, TopologyKey: corev1.LabelHostname,
			}},
		}}
		return p
	}
	s.Run(t, pod("first"))
	second := s.Create(t, pod("second"))
	s.WaitPod(t, second, "to wait", scheduled(corev1.ConditionFalse, "anti-affinity"))
	s.Kubectl(t, "-n", ns, "delete", "pod", "first")
	s.WaitRunning(t, second)
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		why      string
		requests corev1.ResourceList
	}{
		{"Insufficient cpu", limits("1000", "")},
		{"Insufficient memory", limits("", "100Ti")},
	} {
		t.Run(tc.why, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			pod := harness.Pod(s.Namespace(t), "large", "/bin/probe", "sleep")
			pod.Spec.Containers[0].Resources.Requests = tc.requests
			s.WaitPod(t, s.Create(t, pod), "to be unschedulable", func(p *corev1.Pod) error {
				if p.Spec.NodeName != "" {
					return harness.Permanent(fmt.Errorf("it is on %s", p.Spec.NodeName))
				}
				return scheduled(corev1.ConditionFalse, tc.why)(p)
			})
		})
	}
}
