package process

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestKeeperKilled: a keeper that is killed takes its pod along, which is started again with nothing left of it before.
// Other pods do not notice.
func TestKeeperKilled(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	run := func(name string, change func(*corev1.PodSpec)) (sandbox, container int) {
		pod := harness.Pod(ns, name, "/bin/probe", "sleep")
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		change(&pod.Spec)
		pod = s.Run(t, pod)
		return s.SandboxPID(t, pod), s.ContainerPID(t, pod, "main")
	}
	var left []int
	var groups []string
	killed := map[string]func(*corev1.PodSpec){
		"plain": func(*corev1.PodSpec) {},
		"pid":   func(p *corev1.PodSpec) { p.HostPID = true },
		"own":   func(p *corev1.PodSpec) { own := false; p.HostUsers = &own }, // its sandbox is runc's
	}
	other, otherContainer := run("other", func(*corev1.PodSpec) {})
	for name, change := range killed {
		sandbox, container := run(name, change)
		left = append(left, sandbox, container)
		groups = append(groups, harness.CgroupDir(t, sandbox, "memory"), harness.CgroupDir(t, container, "memory"))
		keeper, err := strconv.Atoi(harness.ProcStatus(t, container, "PPid"))
		if err != nil || harness.ProcStatus(t, keeper, "Name") != "kubelith-keeper" {
			t.Fatalf("pod %s: the container has the parent %d, %v", name, keeper, err)
		}
		if err := unix.Kill(keeper, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	harness.Eventually(t, harness.PodTimeout, "the processes before to be gone", func() error {
		for _, pid := range left {
			if harness.Alive(pid) {
				return fmt.Errorf("process %d is alive", pid)
			}
		}
		for _, dir := range groups {
			if _, err := os.Stat(dir); err == nil {
				return fmt.Errorf("the cgroup %s is there", dir)
			}
		}
		return nil
	})
	for name := range killed {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		pod = s.WaitPod(t, pod, "to run again", func(pod *corev1.Pod) error {
			if status := harness.Status(pod, "main"); status == nil || status.RestartCount == 0 || !status.Ready {
				return fmt.Errorf("container: %+v", status)
			}
			return harness.PodReady(pod)
		})
		if got := s.PodExec(t, pod, "", "/bin/echo", "there"); got != "there\n" {
			t.Errorf("pod %s answers %q", name, got)
		}
	}
	if !harness.Alive(other) || !harness.Alive(otherContainer) {
		t.Error("the pod whose keeper was not killed has ended")
	}
	s.Kubectl(t, "delete", "pods", "-n", ns, "--all", harness.Timeout(time.Minute))
}
