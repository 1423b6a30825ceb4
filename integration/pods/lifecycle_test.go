package pods

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestHooks: postStart has ended before the pod is Ready, preStop before SIGTERM is sent.
func TestHooks(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "hooks", harness.Shell("trap 'echo term >>/shared/order; exit 0' TERM; while true; do sleep 0.1; done")...)
	pod.Spec.TerminationGracePeriodSeconds = ptr(int64(20))
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: harness.Shell("sleep 0.5; echo postStart >>/shared/order")}},
		PreStop:   &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: harness.Shell("sleep 0.5; echo preStop >>/shared/order")}},
	}
	dir := "/var/lib/" + ns
	shared(pod, dir)
	order := func() string {
		content, _ := os.ReadFile(s.Path(dir + "/order"))
		return strings.Join(strings.Fields(string(content)), " ")
	}
	pod = s.Run(t, pod)
	if got := order(); got != "postStart" {
		t.Errorf("when Ready: %q", got)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "hooks", "--wait=false")
	waitGone(t, s, pod)
	if got := order(); got != "postStart preStop term" {
		t.Errorf("in the end: %q", got)
	}
}

func TestPostStartFailureKillsTheContainer(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "hook", "/bin/probe", "sleep")
	pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{
		PostStart: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: harness.Shell("exit 3")}},
	}
	s.RunToEnd(t, pod)
	event(t, s, ns, "hook", "FailedPostStartHook", "PostStartHook")
}

// TestTermination measures the time between the request to delete and the end of the process.
func TestTermination(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		command     []string
		grace       int64
		least, most time.Duration
	}{
		{"obeys", []string{"/bin/probe", "sleep", "--on-term=1s"}, 30, time.Second, 6 * time.Second},
		{"ignores", harness.Shell("trap '' TERM; while true; do sleep 0.1; done"), 3, 3 * time.Second, 8 * time.Second},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, tc.name, tc.command...)
			pod.Spec.TerminationGracePeriodSeconds = &tc.grace
			pod = s.Run(t, pod)
			pid := s.ContainerPID(t, pod, "main")
			began := time.Now()
			s.Kubectl(t, "-n", ns, "delete", "pod", tc.name, "--wait=false")
			harness.Eventually(t, time.Minute, "the process to end", func() error {
				if harness.Alive(pid) {
					return fmt.Errorf("it lives")
				}
				return nil
			})
			if took := time.Since(began); took < tc.least || took > tc.most {
				t.Errorf("took %s, not %s to %s", took, tc.least, tc.most)
			}
			waitGone(t, s, pod)
		})
	}
}

// TestRestartPolicy: a container that fails is started again under Always and OnFailure, and then has to wait.
func TestRestartPolicy(t *testing.T) {
	t.Parallel()
	for _, policy := range []corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, "crash", "/bin/probe", "exit", "4")
			pod.Spec.RestartPolicy = policy
			pod = s.WaitPod(t, s.Create(t, pod), "to back off", waits("main", "CrashLoopBackOff"))
			st := harness.Status(pod, "main")
			if st.RestartCount < 1 || st.LastTerminationState.Terminated == nil || st.LastTerminationState.Terminated.ExitCode != 4 {
				t.Errorf("%+v", st)
			}
		})
	}
}

func TestActiveDeadline(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "late", "/bin/probe", "sleep")
	pod.Spec.ActiveDeadlineSeconds = ptr(int64(12)) // long enough to be seen running on a busy machine
	pod = s.Run(t, pod)
	pid := s.ContainerPID(t, pod, "main")
	pod = s.WaitPod(t, pod, "to end", harness.PodEnded)
	if pod.Status.Phase != corev1.PodFailed || pod.Status.Reason != "DeadlineExceeded" {
		t.Errorf("phase %s, reason %s", pod.Status.Phase, pod.Status.Reason)
	}
	harness.Eventually(t, 15*time.Second, "its process to end", func() error {
		if harness.Alive(pid) {
			return fmt.Errorf("it lives")
		}
		return nil
	})
}

func TestOOMKill(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "greedy", "/bin/probe", "eat", "200")
	pod.Spec.Containers[0].Resources.Limits = limits("", "64Mi")
	pod = s.RunToEnd(t, pod)
	if st := harness.Status(pod, "main").State.Terminated; st.Reason != "OOMKilled" || st.ExitCode != 137 {
		t.Errorf("reason %s, exit code %d", st.Reason, st.ExitCode)
	}
}

func TestImagePullFailures(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, image string
		policy      corev1.PullPolicy
		reasons     []string
	}{
		{"unknown", "docker.io/kubelith/no-such-image:1", corev1.PullIfNotPresent, []string{"ErrImagePull", "ImagePullBackOff"}},
		{"never", "docker.io/kubelith/no-such-image:1", corev1.PullNever, []string{"ErrImageNeverPull"}},
		{"malformed", "no spaces allowed", corev1.PullIfNotPresent, []string{"InvalidImageName"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := cluster.Get(t)
			ns := s.Namespace(t)
			pod := harness.Pod(ns, "image", "/bin/probe", "sleep")
			pod.Spec.Containers[0].Image = tc.image
			pod.Spec.Containers[0].ImagePullPolicy = tc.policy
			s.WaitPod(t, s.Create(t, pod), "to say what is wrong", waits("main", tc.reasons...))
		})
	}
}
