package pods

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
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

// TestFinishedPodFreesCPU: the scheduler must not count a finished pod that still exists. Serial, because it fills the
// node.
func TestFinishedPodFreesCPU(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	most := resource.NewMilliQuantity(node(t, s).Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	pod := func(name string, command ...string) *corev1.Pod {
		p := harness.Pod(ns, name, command...)
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *most}
		return p
	}
	first := s.Run(t, pod("first", harness.Shell("until [ -e /go ]; do sleep 0.1; done")...))
	second := s.Create(t, pod("second", "/bin/probe", "sleep"))
	s.WaitPod(t, second, "to be unschedulable at first", scheduled(corev1.ConditionFalse, "Insufficient cpu"))
	s.PodExec(t, first, "", "touch", "/go")
	first = s.WaitPod(t, first, "to end", harness.PodEnded)
	s.WaitRunning(t, second)
	if now, err := s.Client(t).CoreV1().Pods(ns).Get(t.Context(), first.Name, metav1.GetOptions{}); err != nil || now.UID != first.UID {
		t.Errorf("the finished pod is gone, so this test has shown nothing: %v", err)
	}
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
