// Package volumes tests the volumes that need no storage driver: what the container reads, what is mounted,
// what changes while it runs and what is left on the node afterwards.
package volumes

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// The kubelet looks after running pods' volumes every sync-frequency: a minute by default.
var cluster = harness.NewShared(harness.Options{Args: []string{"--kubelet-arg=sync-frequency=2s"}})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

func ptr[T any](v T) *T { return &v }

// mount adds a volume to the pod and mounts it into every container at /NAME.
func mount(pod *corev1.Pod, name string, source corev1.VolumeSource) {
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
}

// read is the trimmed content of a file in a pod.
func read(t testing.TB, s *harness.Server, pod *corev1.Pod, path string) string {
	t.Helper()
	return strings.TrimSpace(s.PodExec(t, pod, "", "cat", path))
}

// mountType is the file system type of a mount point of the container, from its /proc/mounts, or "".
func mountType(t testing.TB, s *harness.Server, pod *corev1.Pod, path string) string {
	t.Helper()
	for line := range strings.Lines(s.PodExec(t, pod, "", "cat", "/proc/mounts")) {
		if f := strings.Fields(line); len(f) > 2 && f[1] == path {
			return f[2]
		}
	}
	return ""
}

// hostFile reads a file of the node.
func hostFile(t testing.TB, s *harness.Server, path string) string {
	t.Helper()
	content, err := os.ReadFile(s.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
