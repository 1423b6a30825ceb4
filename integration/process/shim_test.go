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

// TestShimKilled: one shim holds all pods of a node. When it is killed, they are started again, and nothing is left of them before.
func TestShimKilled(t *testing.T) {
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	of := map[string]func(*corev1.PodSpec){
		"plain": func(*corev1.PodSpec) {},
		"pid":   func(p *corev1.PodSpec) { p.HostPID = true },
		"own":   func(p *corev1.PodSpec) { own := false; p.HostUsers = &own }, // its sandbox is runc's
	}
	var left []int
	var groups []string
	shim := 0
	for name, change := range of {
		pod := harness.Pod(ns, name, "/bin/probe", "sleep")
		pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		change(&pod.Spec)
		pod = s.Run(t, pod)
		sandbox, container := s.SandboxPID(t, pod), s.ContainerPID(t, pod, "main")
		left = append(left, sandbox, container)
		groups = append(groups, harness.CgroupDir(t, sandbox, "memory"), harness.CgroupDir(t, container, "memory"))
		for _, pid := range []int{sandbox, container} {
			parent, err := strconv.Atoi(harness.ProcStatus(t, pid, "PPid"))
			if err != nil || shim != 0 && parent != shim {
				t.Fatalf("pod %s: process %d has parent %d, %v, want the shim %d", name, pid, parent, err, shim)
			}
			shim = parent
		}
	}
	if err := unix.Kill(shim, unix.SIGKILL); err != nil {
		t.Fatal(err)
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
	for name := range of {
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
		if parent := harness.ProcStatus(t, s.SandboxPID(t, pod), "PPid"); parent == strconv.Itoa(shim) {
			t.Errorf("pod %s is of the shim that was killed", name)
		}
	}
	s.Kubectl(t, "delete", "pods", "-n", ns, "--all", "--timeout="+time.Minute.String())
}
