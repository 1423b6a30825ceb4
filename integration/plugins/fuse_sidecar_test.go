package plugins

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/integration/harness"
)

// fuseClient is the container that the plugin fuse-sidecar adds.
const fuseClient = "kubelith-fuse"

// restricted makes a pod one that the Pod Security Standard of this name admits.
func restricted(pod *corev1.Pod) {
	pod.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](1000),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].SecurityContext = &corev1.SecurityContext{AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
		}
	}
}

// testFUSESidecar: the client in the pod starts before its init containers, ends after its containers when all is
// uploaded, and may die; it has neither credentials nor rights.
func testFUSESidecar(t *testing.T, s *harness.Server, store *fuseStore) {
	pod, key := fusePod(t, s, store, "fuse-sidecar", func(pod *corev1.Pod) {
		first := harness.Container("prepare", harness.Shell("echo prepared >/data/prepared")...)
		first.VolumeMounts = pod.Spec.Containers[0].VolumeMounts
		pod.Spec.InitContainers = []corev1.Container{first}
		pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](30)
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		pod.Spec.Containers[0].Command[2] = "trap 'exit 0' TERM; " + pod.Spec.Containers[0].Command[2]
	}, restricted)
	ns, client := pod.Namespace, s.Client(t)
	if got, _ := store.Get(key + "prepared"); got != "prepared\n" {
		t.Errorf("the init container has written %q", got)
	}
	if c := pod.Spec.InitContainers[0]; c.Name != fuseClient {
		t.Errorf("the first container is %s", c.Name)
	}
	secrets, err := client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(secrets.Items) > 0 {
		t.Errorf("the namespace of the pod has %d Secrets, %v", len(secrets.Items), err)
	}

	s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, pod, fuseClient)))
	worksOn(t, s, store, pod, key, "client killed")
	openWorks(t, s, store, pod, key, "client killed")
	kill(t, s, "fuse")
	wait(t, s, "fuse", "is ready again", ready)
	worksOn(t, s, store, pod, key, "plugin killed")
	openWorks(t, s, store, pod, key, "plugin killed")
	quota(t, s, pod)
	s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, pod, "main")))
	pod = s.WaitPod(t, pod, "its program to be started again", func(p *corev1.Pod) error {
		if c := harness.Status(p, "main"); c.RestartCount == 0 || c.State.Running == nil {
			return errors.New("it is not")
		}
		return nil
	})
	worksOn(t, s, store, pod, key, "program killed")

	// Another container, a later one too, does not get the client's files.
	debug := pod.DeepCopy()
	debug.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug",
		Image: pod.Spec.Containers[0].Image, SecurityContext: pod.Spec.Containers[0].SecurityContext, VolumeMounts: []corev1.VolumeMount{{Name: fuseClient + "-buffers", MountPath: "/a"}}}}}
	if _, err := client.CoreV1().Pods(ns).UpdateEphemeralContainers(t.Context(), pod.Name, debug, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "for the container "+fuseClient+" only") {
		t.Errorf("a debug container with the client's files: %v", err)
	}
	job := podWith(ns, "once", "data", "", harness.Shell("cat /data/prepared >/data/once")...)
	restricted(job)
	s.RunToEnd(t, job)
	if got, _ := store.Get(key + "once"); got != "prepared\n" {
		t.Errorf("the pod that has ended has written %q", got)
	}

	// The end: a file that is open until then, and cannot be uploaded at once, is uploaded before the pod is gone. Not
	// echo >&4: that closes a copy of the file, and so uploads it.
	s.PodExec(t, pod, "main", "/bin/sh", "-c", "(exec >/data/last </dev/null 2>/dev/null; echo last; exec sleep 1000) &")
	program := s.ContainerPID(t, pod, "main")
	store.Away(true)
	t.Cleanup(func() { store.Away(false) })
	if err := client.CoreV1().Pods(ns).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](120)}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "its program to end", func() error { // the API shows it once all ended
		if _, err := os.Stat(fmt.Sprint("/proc/", program)); err == nil {
			return errors.New("it runs")
		}
		return nil
	})
	store.Away(false)
	harness.Eventually(t, harness.PodTimeout, "the pod to be gone", func() error {
		_, err := client.CoreV1().Pods(ns).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is there: %w", err)
	})
	if got, _ := store.Get(key + "last"); got != "last\n" {
		t.Errorf("the object has %q", got)
	}
}
