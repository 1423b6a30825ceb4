package soak

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// fault does one thing to the server and returns what it was. When it returns, the server answers.
type fault func(t *testing.T, s *harness.Server, random *rand.Rand) string

const namespace = "default"

func createPod(t *testing.T, s *harness.Server, random *rand.Rand) string {
	const what = "create a pod"
	create(t, s, random, what)
	return what
}

const withVolume = "create a pod with a volume"

func createPodWithVolume(t *testing.T, s *harness.Server, random *rand.Rand) string {
	create(t, s, random, withVolume)
	return withVolume
}

// create returns the name of the pod, which is that of its claim.
func create(t *testing.T, s *harness.Server, random *rand.Rand, what string) (name string) {
	name = "soak-" + strconv.FormatUint(random.Uint64(), 36)
	pod := harness.Pod(namespace, name, "sleep", "10000")
	pod.Labels = map[string]string{"soak": "pod"}
	if what == withVolume {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: pod.Labels}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("16Mi")}},
		}}
		eventually(t, what, func() error {
			_, err := s.Client(t).CoreV1().PersistentVolumeClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{})
			return unlessExists(err)
		})
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}}
		pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}
	eventually(t, what, func() error {
		_, err := s.Client(t).CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		return unlessExists(err)
	})
	return name
}

func unlessExists(err error) error {
	if apierrors.IsAlreadyExists(err) { // an answer that was lost
		return nil
	}
	return err
}

func deletePod(t *testing.T, s *harness.Server, random *rand.Rand) string {
	var pods *corev1.PodList
	eventually(t, "list pods", func() (err error) {
		pods, err = s.Client(t).CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "soak"})
		return err
	})
	if len(pods.Items) == 0 {
		return "delete no pod"
	}
	deleteWithClaim(t, s, pods.Items[random.IntN(len(pods.Items))].Name)
	return "delete a pod"
}

func deleteWithClaim(t *testing.T, s *harness.Server, name string) {
	eventually(t, "delete a pod", func() error {
		if err := s.Client(t).CoreV1().PersistentVolumeClaims(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if err := s.Client(t).CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		return nil
	})
}

// removePods deletes all pods and claims and waits until they and their volumes are gone.
func removePods(t *testing.T, s *harness.Server) {
	t.Helper()
	s.Kubectl(t, "-n", namespace, "delete", "pods,persistentvolumeclaims", "-l", "soak", "--wait=true", fmt.Sprintf("--timeout=%v", harness.Patience(110*time.Second)))
	harness.Eventually(t, 3*time.Minute, "no volume", func() error {
		if left := s.Kubectl(t, "get", "persistentvolumes", "-o", "name"); strings.TrimSpace(left) != "" {
			why := s.Kubectl(t, "get", "events", "-A", "--field-selector=involvedObject.kind=PersistentVolume", "-o", "jsonpath={range .items[*]}{.involvedObject.name}: {.message} ({.count} times)\n{end}")
			return fmt.Errorf("left: %sevents:\n%s", left, why)
		}
		return nil
	})
}

// failingWebhook refuses every write but those of the admission API itself, for a while; a restart happens meanwhile,
// or not.
func failingWebhook(t *testing.T, s *harness.Server, random *rand.Rand) string {
	fail, none, url := admissionv1.Fail, admissionv1.SideEffectClassNone, "https://127.0.0.1:1/nobody"
	hook := &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "soak"}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: "soak.example.org", ClientConfig: admissionv1.WebhookClientConfig{URL: &url}, FailurePolicy: &fail, SideEffects: &none,
		AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.OperationAll},
			Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}}}},
	}}}
	eventually(t, "make a webhook", func() error {
		_, err := s.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(), hook, metav1.CreateOptions{})
		return unlessExists(err)
	})
	what := "a webhook that no server serves"
	if random.IntN(2) == 0 {
		what += ", and kill -9"
		s.Kill9(t)
		s.Launch(t)
	}
	time.Sleep(2 * time.Second)
	eventually(t, "delete the webhook", func() error {
		err := s.Client(t).AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(t.Context(), "soak", metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	s.WaitReady(t)
	return what
}

func kill(t *testing.T, s *harness.Server, random *rand.Rand) string {
	s.Kill9(t)
	s.Launch(t)
	if random.IntN(3) == 0 { // again, in the middle of the start
		time.Sleep(time.Duration(random.IntN(1500)) * time.Millisecond)
		s.Kill9(t)
		s.Launch(t)
	}
	s.WaitReady(t)
	return "kill -9"
}

// killUnstaging kills the server when the kubelet has unmounted a volume from its pod, and has not unstaged it: the
// next kubelet does not know of it.
func killUnstaging(t *testing.T, s *harness.Server, random *rand.Rand) string {
	const what = "kill -9 before a volume is unstaged"
	name := create(t, s, random, withVolume)
	mountOfPod := ""
	eventually(t, what+": it is mounted", func() error {
		claim, err := s.Client(t).CoreV1().PersistentVolumeClaims(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		mountOfPod = "kubernetes.io~csi/" + claim.Spec.VolumeName + "/mount "
		if claim.Spec.VolumeName == "" || !strings.Contains(mountsOf(t, s), mountOfPod) {
			return fmt.Errorf("volume %q is not mounted", claim.Spec.VolumeName)
		}
		return nil
	})
	deleteWithClaim(t, s, name)
	for end := time.Now().Add(harness.Patience(time.Minute)); strings.Contains(mountsOf(t, s), mountOfPod); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s: it is mounted a minute after its pod was deleted", what)
			break
		}
	}
	s.Kill9(t)
	s.Launch(t)
	s.WaitReady(t)
	return what
}

func restart(t *testing.T, s *harness.Server, _ *rand.Rand) string {
	s.Restart(t)
	return "restart"
}

func restartPlugin(t *testing.T, s *harness.Server, _ *rand.Rand) string {
	s.RunBinary(t, "plugin", "restart", "local") // refused while it starts, which is no fault
	return "restart the storage plugin"
}

// killPlugin kills the process of the storage plugin, of which the server is the parent.
func killPlugin(t *testing.T, s *harness.Server, _ *rand.Rand) string {
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", s.PID(), s.PID()))
	if err != nil {
		return "kill no plugin"
	}
	for child := range strings.FieldsSeq(string(children)) {
		pid, _ := strconv.Atoi(child)
		if exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid)); err == nil && filepath.Base(exe) == "kubelith-local" {
			syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	return "kill -9 of the storage plugin"
}

// fillDisk fills the disk of the data directory. The server may end; a service manager would start it again.
func fillDisk(t *testing.T, s *harness.Server, random *rand.Rand) string {
	filler := harness.DataDir + "/filler"
	s.TryExec(t, "dd", "if=/dev/zero", "of="+filler, "bs=1M") // ends with ENOSPC
	what := "a full disk"
	select {
	case <-s.Exited():
	case <-time.After(time.Duration(3+random.IntN(5)) * time.Second):
	}
	if random.IntN(2) == 0 {
		what += ", and kill -9"
		if running(s) {
			s.Kill9(t)
		}
	}
	s.Exec(t, "rm", filler)
	eventually(t, "the server to answer after a full disk", func() error {
		if !running(s) { // it may have been ending when there was room again
			s.WaitExit(t, time.Minute)
			s.Launch(t)
		}
		if r := s.TryKubectl(t, "get", "--raw", "/readyz"); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
	s.WaitReady(t)
	return what
}

func running(s *harness.Server) bool {
	select {
	case <-s.Exited():
		return false
	default:
		return true
	}
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, what, f)
}
