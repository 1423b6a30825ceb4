package plugins

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/integration/harness"
)

const (
	zones             = harness.DataDir + "/plugins/scheduling/zones"
	schedulerFile     = "/etc/kubelith/scheduler.yaml"
	schedulerProfiles = schedulerHead + `- schedulerName: plain
- schedulerName: picky
  plugins: {multiPoint: {enabled: [{name: zones}]}}
`
	// schedulerHead ends in the default profile, to which plugins may be added.
	schedulerHead = `apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 2
profiles:
- schedulerName: default-scheduler
`
)

// TestScheduling: a plugin takes part in scheduling, whatever happens to its process. The nodes are objects without
// machines: nothing runs.
func TestScheduling(t *testing.T) {
	t.Parallel()
	s := schedulingServer(t, "", schedulerProfiles, map[string]string{zones: harness.BuildProgram(t, "./zones")})
	wait(t, s, "zones", "is ready", ready)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *harness.Server)
	}{
		{"prefers", testPrefers}, {"refuses", testRefuses}, {"profiles", testProfiles}, {"preempts", testPreempts}, {"crash", testCrash}, {"stopped", testStopped},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.run(t, s) })
	}
}

// withoutNode switches off what only a server's own node needs.
var withoutNode = []string{"containerd", "dns", "kubelet", "local-storage", "metrics-server", "network", "proxy", "servicelb"}

// schedulingServer schedules for three nodes that are objects only. The plugins' programs are put to the paths.
func schedulingServer(t *testing.T, config, profiles string, programs map[string]string) *harness.Server {
	t.Helper()
	s := harness.Start(t, harness.Options{
		NoWait: true, NoTestImage: true, ConfigYAML: config,
		Disable: withoutNode,
		Args: []string{"--scheduler-arg=config=" + schedulerFile,
			"--controller-manager-arg=controllers=*,-node-lifecycle-controller,-pod-garbage-collector-controller"},
		Prepare: func(s *harness.Server) error {
			for path, program := range programs {
				install(t, s, program, path)
			}
			return writeProfiles(s, profiles)
		},
	})
	s.WaitAPI(t)
	for _, zone := range []string{"no", "good", "best"} {
		makeNode(t, s, "in-"+zone, map[string]string{"zone": zone}, "8", resource.MustParse("8Gi"))
	}
	return s
}

// writeProfiles writes the file that the scheduler is configured by.
func writeProfiles(s *harness.Server, profiles string) error {
	file := s.Path(schedulerFile)
	return errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(profiles), 0o644))
}

// makeNode creates a Node without a machine.
func makeNode(t *testing.T, s *harness.Server, name string, labels map[string]string, cpu string, memory resource.Quantity) {
	t.Helper()
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: memory, corev1.ResourcePods: resource.MustParse("100")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Status: corev1.NodeStatus{Capacity: list, Allocatable: list}}
	if _, err := s.Client(t).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// unbound is a pod for the nodes of the test, which carry the taint of new nodes for good.
func unbound(ns, name string, labels ...string) *corev1.Pod {
	pod := harness.Pod(ns, name, "sleep", "1000")
	pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	pod.Labels = map[string]string{}
	for _, l := range labels {
		key, value, _ := strings.Cut(l, "=")
		pod.Labels[key] = value
	}
	return pod
}

// in puts a pod into a zone.
func in(zone string, pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{"zone": zone}
	return pod
}

// bound waits until a pod has a node, and returns it.
func bound(t *testing.T, s *harness.Server, pod *corev1.Pod) string {
	t.Helper()
	return s.WaitPod(t, pod, "a node", func(p *corev1.Pod) error {
		if p.Spec.NodeName == "" {
			return fmt.Errorf("it has none: %v", p.Status.Conditions)
		}
		return nil
	}).Spec.NodeName
}

// refused waits until the scheduler reports why a pod has no node.
func refused(t *testing.T, s *harness.Server, pod *corev1.Pod, why string) {
	t.Helper()
	s.WaitPod(t, pod, "its refusal", func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("node %q, conditions %v; want none, because %q", p.Spec.NodeName, p.Status.Conditions, why)
	})
}

func testPrefers(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	for i := range 10 {
		if node := bound(t, s, s.Create(t, unbound(ns, fmt.Sprint("p", i)))); node != "in-best" {
			t.Errorf("pod %d is on %s", i, node)
		}
	}
}

// testRefuses: the pod's condition has the reason, and a pod that changes is tried again.
func testRefuses(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	pod := s.Create(t, in("no", unbound(ns, "p")))
	refused(t, s, pod, "1 wrong zone")
	s.Kubectl(t, "-n", ns, "label", "pod", "p", "anywhere=")
	if node := bound(t, s, pod); node != "in-no" {
		t.Errorf("node %s", node)
	}
}

func testProfiles(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	for profile, check := range map[string]func(pod *corev1.Pod){
		"plain": func(pod *corev1.Pod) { bound(t, s, pod) },
		"picky": func(pod *corev1.Pod) { refused(t, s, pod, "wrong zone") },
	} {
		pod := in("no", unbound(ns, profile))
		pod.Spec.SchedulerName = profile
		check(s.Create(t, pod))
	}
}

// testPreempts: the plugin, not upstream, has no room for a third of the team; one of lower priority makes it.
func testPreempts(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	client := s.Client(t)
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: ns}, Value: 1000}
	if _, err := client.SchedulingV1().PriorityClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"low-1", "low-2"} {
		bound(t, s, s.Create(t, in("good", unbound(ns, name, "team="+ns))))
	}
	refused(t, s, s.Create(t, in("good", unbound(ns, "low-3", "team="+ns))), "1 two of the team are there")
	high := in("good", unbound(ns, "high", "team="+ns))
	high.Spec.PriorityClassName = ns
	high = s.Create(t, high)
	var victim string
	harness.Eventually(t, 30*time.Second, "a victim", func() error {
		list, err := client.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp != nil && p.Spec.NodeName != "" {
				victim = p.Name
				return nil
			}
		}
		return errors.New("none of the pods is being deleted")
	})
	// No kubelet ends it.
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), victim, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	if node := bound(t, s, high); node != "in-good" {
		t.Errorf("node %s", node)
	}
}

// preferredAgain waits until pods go where the plugin wants them.
func preferredAgain(t *testing.T, s *harness.Server, ns string) {
	t.Helper()
	i := 0
	harness.Eventually(t, time.Minute, "the plugin to score again", func() error {
		i++
		if node := bound(t, s, s.Create(t, unbound(ns, fmt.Sprint("again-", i)))); node != "in-best" {
			return fmt.Errorf("a pod went to %s", node)
		}
		return nil
	})
}

// testCrash: a pod in whose call the plugin ends is scheduled without it, and the plugin comes back.
func testCrash(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	before := processes(t, s, "zones")
	bound(t, s, s.Create(t, unbound(ns, "p", "crash=")))
	preferredAgain(t, s, ns)
	if after := processes(t, s, "zones"); len(before) != 1 || len(after) != 1 || before[0] == after[0] {
		t.Errorf("processes %v, and %v after a crash", before, after)
	}
}

// testStopped: with a process that hangs, pods are scheduled all the same.
func testStopped(t *testing.T, s *harness.Server) {
	ns := s.Namespace(t)
	running := processes(t, s, "zones")
	if len(running) != 1 {
		t.Fatalf("processes %v, want one", running)
	}
	if err := syscall.Kill(running[0], syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		s.Create(t, unbound(ns, fmt.Sprint("p", i)))
	}
	for i := range 20 {
		bound(t, s, unbound(ns, fmt.Sprint("p", i)))
	}
	preferredAgain(t, s, ns)
}
