package harness

import (
	"context"
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/testimage"
)

// PodTimeout is ample for a pod to run or to end on a busy machine.
const PodTimeout = 90 * time.Second

// Container returns a container of the test image that runs a command.
func Container(name string, command ...string) corev1.Container {
	return corev1.Container{
		Name:            name,
		Image:           testimage.Ref,
		ImagePullPolicy: corev1.PullIfNotPresent,
		Command:         command,
	}
}

// Pod returns a pod with one container, named main, that runs a command. It is not restarted and has one second to
// stop. Change the result before Create or Run.
func Pod(namespace, name string, command ...string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{Container("main", command...)},
			RestartPolicy:                 corev1.RestartPolicyNever,
			TerminationGracePeriodSeconds: &grace,
		},
	}
}

// Shell returns the command line of a shell script.
func Shell(script string) []string { return []string{"/bin/sh", "-c", script} }

// Create creates a pod.
func (a API) Create(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := a.Client(t).CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod %s: %v", pod.Name, err)
	}
	return created
}

// Run creates a pod and waits until it is Ready (containers running, probes passed).
func (a API) Run(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	return a.WaitRunning(t, a.Create(t, pod))
}

// RunToEnd creates a pod and waits until it has Succeeded or Failed.
func (a API) RunToEnd(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	return a.WaitPod(t, a.Create(t, pod), "to end", PodEnded)
}

// WaitRunning waits until the pod is Ready.
func (a API) WaitRunning(t testing.TB, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	return a.WaitPod(t, pod, "to be Ready", PodReady)
}

// WaitPod waits until a pod satisfies a condition and returns it.
func (a API) WaitPod(t testing.TB, pod *corev1.Pod, what string, cond func(*corev1.Pod) error) *corev1.Pod {
	t.Helper()
	client := a.Client(t)
	var got *corev1.Pod
	Eventually(t, PodTimeout, "pod "+pod.Name+" "+what, func() error {
		var err error
		got, err = client.CoreV1().Pods(pod.Namespace).Get(context.Background(), pod.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		return cond(got)
	})
	return got
}

// Deploy creates a Deployment of pods like this one, in the pod's namespace and with its name.
func (a API) Deploy(t *testing.T, pod *corev1.Pod, replicas int32) {
	t.Helper()
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err := a.Client(t).AppsV1().Deployments(pod.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: pod.Name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// WaitRollout waits until what has pods, such as deployment/NAME, has rolled out.
func (a API) WaitRollout(t testing.TB, ns, object string) {
	t.Helper()
	a.Kubectl(t, "-n", ns, "rollout", "status", object, fmt.Sprint("--timeout=", Patience(programTimeout-10*time.Second)))
}

// PodReady returns nil when the pod has the Ready condition.
func PodReady(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return nil
		}
	}
	err := fmt.Errorf("phase %s: %s", pod.Status.Phase, containerStates(pod))
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return Permanent(err)
	}
	return err
}

// PodEnded returns nil when the pod has Succeeded or Failed.
func PodEnded(pod *corev1.Pod) error {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	return fmt.Errorf("phase %s: %s", pod.Status.Phase, containerStates(pod))
}

// Status returns the status of a container of any kind, or nil.
func Status(pod *corev1.Pod, container string) *corev1.ContainerStatus {
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for i := range list {
			if list[i].Name == container {
				return &list[i]
			}
		}
	}
	return nil
}

func containerStates(pod *corev1.Pod) string {
	text := pod.Status.Reason + " " + pod.Status.Message
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, c := range list {
			switch {
			case c.State.Waiting != nil:
				text += fmt.Sprintf(" %s waits: %s %s;", c.Name, c.State.Waiting.Reason, c.State.Waiting.Message)
			case c.State.Terminated != nil:
				text += fmt.Sprintf(" %s ended: %s, exit code %d %s;", c.Name, c.State.Terminated.Reason, c.State.Terminated.ExitCode, c.State.Terminated.Message)
			default:
				text += fmt.Sprintf(" %s runs, ready=%t;", c.Name, c.Ready)
			}
		}
	}
	return text
}
