// Package pods tests what a node does with a pod and its volumes, as far as upstream's conformance tests do not:
// processes, Linux namespaces, cgroups, what flows between a user and a container, and the life of the node itself.
// Tests that change the node or fill it are serial (the go tool runs them before the parallel ones).
package pods

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// staticPods is the directory of static pod manifests, inside the sandbox.
const staticPods = "/etc/kubelith/static-pods"

// The kubelet recreates a deleted mirror pod, and sees what became of a volume, when it next syncs its pod: after 60 to
// 90 s by default.
var cluster = harness.NewShared(harness.Options{
	Args:    []string{"--kubelet-arg=pod-manifest-path=" + staticPods, "--kubelet-arg=sync-frequency=2s"},
	Prepare: func(s *harness.Server) error { return os.MkdirAll(s.Path(staticPods), 0o755) },
})

func TestMain(m *testing.M) {
	// The server is started with a file that is not its own, as a shell may do. It must not reach pods
	// (TestSandboxProcess).
	if _, err := unix.Open("/etc/passwd", unix.O_RDONLY, 0); err != nil {
		panic(err)
	}
	harness.Main(m, cluster)
}

func ptr[T any](v T) *T { return &v }

// shared is a hostPath volume: the test reads what a container wrote, also after the pod is gone.
func shared(pod *corev1.Pod, dir string) {
	kind := corev1.HostPathDirectoryOrCreate
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: "shared", VolumeSource: corev1.VolumeSource{
		HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: &kind},
	}})
	mount := corev1.VolumeMount{Name: "shared", MountPath: "/shared"}
	for i := range pod.Spec.InitContainers {
		pod.Spec.InitContainers[i].VolumeMounts = append(pod.Spec.InitContainers[i].VolumeMounts, mount)
	}
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].VolumeMounts = append(pod.Spec.Containers[i].VolumeMounts, mount)
	}
}

// waits wants a container to wait for a reason.
func waits(container string, reasons ...string) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		st := harness.Status(p, container)
		if st == nil || st.State.Waiting == nil {
			return fmt.Errorf("%s does not wait: %+v", container, st)
		}
		for _, r := range reasons {
			if st.State.Waiting.Reason == r {
				return nil
			}
		}
		return fmt.Errorf("%s waits for %s: %s", container, st.State.Waiting.Reason, st.State.Waiting.Message)
	}
}

// scheduled wants the PodScheduled condition's status, and its message to contain a text.
func scheduled(want corev1.ConditionStatus, text string) func(*corev1.Pod) error {
	return func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == want && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("conditions are %+v", p.Status.Conditions)
	}
}

// waitGone waits until a pod does not exist any more.
func waitGone(t testing.TB, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	s.Kubectl(t, "-n", pod.Namespace, "wait", "--for=delete", "pod/"+pod.Name, harness.Timeout(60*time.Second))
}

// event waits for an event about an object whose message contains a text.
func event(t testing.TB, s *harness.Server, ns, object, reason, text string) {
	t.Helper()
	harness.Eventually(t, harness.PodTimeout, "event "+reason, func() error {
		out := s.Kubectl(t, "-n", ns, "get", "events", "--field-selector=involvedObject.name="+object+",reason="+reason, "-o=jsonpath={.items[*].message}")
		if out == "" || !strings.Contains(out, text) {
			return fmt.Errorf("the events are %q", out)
		}
		return nil
	})
}
