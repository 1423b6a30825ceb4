package volumes

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

// memory parses a quantity.
func memory(q string) *resource.Quantity {
	v := resource.MustParse(q)
	return &v
}

// TestEmptyDir: shared by the pod's containers, outlives one of them, on disk or in memory, gone with the pod.
func TestEmptyDir(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		source corev1.EmptyDirVolumeSource
	}{
		{"disk", corev1.EmptyDirVolumeSource{}},
		{"memory", corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: memory("8Mi")}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, "pair", "/bin/probe", "sleep")
			pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
			pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("other", "/bin/probe", "sleep"))
			mount(pod, "scratch", corev1.VolumeSource{EmptyDir: &tc.source})
			pod = s.Run(t, pod)
			s.PodExec(t, pod, "main", harness.Shell("echo from main >/scratch/file")...)
			if got := s.PodExec(t, pod, "other", "cat", "/scratch/file"); got != "from main\n" {
				t.Errorf("the other container reads %q", got)
			}
			onNode := "/var/lib/kubelet/pods/" + string(pod.UID) + "/volumes/kubernetes.io~empty-dir/scratch"
			if got := hostFile(t, s, onNode+"/file"); got != "from main\n" {
				t.Errorf("on the node: %q", got)
			}
			if inMemory := mountType(t, s, pod, "/scratch") == "tmpfs"; inMemory != (tc.source.Medium == corev1.StorageMediumMemory) {
				t.Errorf("in memory: %t", inMemory)
			}
			if tc.source.SizeLimit != nil {
				if _, errOut, err := s.TryPodExec(t, pod, "main", "dd", "if=/dev/zero", "of=/scratch/big", "bs=1M", "count=20"); err == nil || !strings.Contains(errOut, "No space") {
					t.Errorf("20 MiB fit into a volume of 8: %v %s", err, errOut)
				}
			}
			s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, pod, "main")))
			pod = s.WaitPod(t, pod, "to be back after its process was killed", func(p *corev1.Pod) error {
				if st := harness.Status(p, "main"); st.RestartCount != 1 {
					return fmt.Errorf("%+v", st)
				}
				return harness.PodReady(p)
			})
			if got := s.PodExec(t, pod, "main", "cat", "/scratch/file"); got != "from main\n" {
				t.Errorf("after a restart of the container: %q", got)
			}
			s.Kubectl(t, "-n", ns, "delete", "pod", "pair", "--wait=true")
			harness.Eventually(t, harness.PodTimeout, "the volume to be gone from the node", func() error {
				if _, err := os.Stat(s.Path(onNode)); err == nil {
					return errors.New("it is there")
				}
				return nil
			})
		})
	}
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
	harness.Eventually(t, harness.PodTimeout, "the event that refuses it", func() error {
		out := s.Kubectl(t, "-n", ns, "get", "events", "--field-selector=involvedObject.name=writer,reason=FailedMount", "-o=jsonpath={.items[*].message}")
		if !strings.Contains(out, "is not a directory") {
			return fmt.Errorf("events say %q", out)
		}
		return nil
	})
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

// TestSubPath: a part of a volume, also named after the pod's own environment; a way out of the volume is refused.
func TestSubPath(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "parts", "/bin/probe", "sleep")
	mount(pod, "whole", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	c := &pod.Spec.Containers[0]
	c.Env = []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	c.VolumeMounts = append(c.VolumeMounts,
		corev1.VolumeMount{Name: "whole", MountPath: "/a", SubPath: "dir/a"},
		corev1.VolumeMount{Name: "whole", MountPath: "/b", SubPathExpr: "by-name/$(NAME)", ReadOnly: false},
		corev1.VolumeMount{Name: "whole", MountPath: "/c", SubPath: "dir/a", ReadOnly: true})
	pod = s.Run(t, pod)
	s.PodExec(t, pod, "", harness.Shell("echo one >/a/file; echo two >/b/file")...)
	if got := read(t, s, pod, "/whole/dir/a/file") + read(t, s, pod, "/whole/by-name/parts/file") + read(t, s, pod, "/c/file"); got != "onetwoone" {
		t.Errorf("read %q", got)
	}
	if _, _, err := s.TryPodExec(t, pod, "", "touch", "/c/other"); err == nil {
		t.Error("a read-only part is writable")
	}

	escape := harness.Pod(ns, "escape", "/bin/probe", "sleep")
	mount(escape, "whole", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	escape.Spec.InitContainers = []corev1.Container{harness.Container("link", "ln", "-s", "/etc", "/whole/out")}
	escape.Spec.InitContainers[0].VolumeMounts = []corev1.VolumeMount{{Name: "whole", MountPath: "/whole"}}
	escape.Spec.Containers[0].VolumeMounts = append(escape.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "whole", MountPath: "/out", SubPath: "out"})
	s.WaitPod(t, s.Create(t, escape), "to be refused", func(p *corev1.Pod) error {
		st := harness.Status(p, "main")
		if st != nil && st.State.Running != nil {
			return harness.Permanent(errors.New("it runs"))
		}
		if st == nil || st.State.Waiting == nil || st.State.Waiting.Reason != "CreateContainerConfigError" {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
}

// TestOwnership: fsGroup gives the files of a volume to the group.
func TestOwnership(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "group", "/bin/probe", "sleep")
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: ptr(int64(1000)), FSGroup: ptr(int64(2000))}
	mount(pod, "scratch", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	pod = s.Run(t, pod)
	if got := strings.TrimSpace(s.PodExec(t, pod, "", harness.Shell("touch /scratch/file && stat -c '%u %g' /scratch/file")...)); got != "1000 2000" {
		t.Errorf("the file belongs to %s", got)
	}
}
