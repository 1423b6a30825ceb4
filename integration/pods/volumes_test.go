package pods

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"kubelith.io/kubelith/integration/harness"
)

// TestEmptyDir in memory has its size, outlives a container, and is gone with the pod.
func TestEmptyDir(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "scratch", "/bin/probe", "sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	size := resource.MustParse("8Mi")
	mount(pod, "scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: &size}})
	pod = s.Run(t, pod)
	s.PodExec(t, pod, "main", harness.Shell("echo written >/scratch/file")...)
	onNode := s.Path("/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~empty-dir/scratch")
	if got, err := os.ReadFile(onNode + "/file"); string(got) != "written\n" {
		t.Errorf("on the node: %q, %v", got, err)
	}
	if _, errOut, err := s.TryPodExec(t, pod, "main", "dd", "if=/dev/zero", "of=/scratch/big", "bs=1M", "count=20"); err == nil || !strings.Contains(errOut, "No space") {
		t.Errorf("20 MiB fit into a volume of 8: %v %s", err, errOut)
	}
	s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, pod, "main")))
	pod = s.WaitPod(t, pod, "to be back after its process was killed", func(p *corev1.Pod) error {
		if st := harness.Status(p, "main"); st.RestartCount != 1 {
			return fmt.Errorf("%+v", st)
		}
		return harness.PodReady(p)
	})
	if got := read(t, s, pod, "/scratch/file"); got != "written" {
		t.Errorf("after a restart of the container: %q", got)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "scratch", "--wait=true")
	harness.Eventually(t, harness.PodTimeout, "the volume to be gone from the node", func() error {
		if _, err := os.Stat(onNode); err == nil {
			return errors.New("it is there")
		}
		return nil
	})
}

func TestHostPath(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	dir := "/var/lib/" + ns
	pod := harness.Pod(ns, "writer", harness.Shell("echo from pod >/data/out; cat /data/in; sleep 1000")...)
	mount(pod, "data", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir, Type: ptr(corev1.HostPathDirectory)}})
	pod = s.Create(t, pod)
	// The type Directory demands what is not there yet.
	event(t, s, ns, "writer", "FailedMount", "is not a directory")
	if err := os.MkdirAll(s.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path(dir+"/in"), []byte("from node\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	pod = s.WaitRunning(t, pod)
	harness.Eventually(t, harness.PodTimeout, "both to have read each other", func() error {
		out, err := os.ReadFile(s.Path(dir + "/out"))
		if log := s.PodLogs(t, pod, "main"); string(out) != "from pod\n" || log != "from node\n" {
			return fmt.Errorf("the node reads %q (%v), the pod %q", out, err, log)
		}
		return nil
	})
}

// TestSubPathOutside: a path out of the volume is refused.
func TestSubPathOutside(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	escape := harness.Pod(s.Namespace(t), "escape", "/bin/probe", "sleep")
	mount(escape, "whole", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	escape.Spec.InitContainers = []corev1.Container{harness.Container("link", "ln", "-s", "/etc", "/whole/out")}
	escape.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "whole", MountPath: "/whole"}}
	escape.Spec.Containers[0].VolumeMounts = append(escape.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "whole", MountPath: "/out", SubPath: "out"})
	s.WaitPod(t, s.Create(t, escape), "to be refused", waits("main", "CreateContainerConfigError"))
}

// TestMissingConfigMap: the pod waits for it, with an Event, and starts when it appears.
func TestMissingConfigMap(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "needy", "/bin/probe", "sleep")
	mount(pod, "config", corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "later"}}})
	pod = s.Create(t, pod)
	event(t, s, ns, "needy", "FailedMount", `configmaps "later" not found`) // in the words of the apiserver
	s.Kubectl(t, "-n", ns, "create", "configmap", "later", "--from-literal=a=b")
	pod = s.WaitRunning(t, pod)
	if got := read(t, s, pod, "/config/a"); got != "b" {
		t.Errorf("it reads %q", got)
	}
}

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
