package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

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

// TestTermination measures the time between the request to delete and the end of the process: not before its grace
// ends, and long before the default of 30 s.
func TestTermination(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name        string
		command     []string
		grace       int64
		least, most time.Duration
	}{
		{"obeys", []string{"/bin/probe", "sleep", "--on-term=1s"}, 30, time.Second, 25 * time.Second},
		{"ignores", harness.Shell("trap '' TERM; while true; do sleep 0.1; done"), 3, 3 * time.Second, 25 * time.Second},
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
			s.WaitPod(t, s.Create(t, pod), "to report the reason", waits("main", tc.reasons...))
		})
	}
}
