package pods

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSidecar: an init container with restartPolicy Always runs before and beside main, is restarted, and does
// not keep the pod from ending.
func TestSidecar(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "sidecar", harness.Shell("until [ -e /shared/go ]; do sleep 0.1; done")...)
	sidecar := harness.Container("side", "/bin/probe", "sleep")
	sidecar.RestartPolicy = ptr(corev1.ContainerRestartPolicyAlways)
	pod.Spec.InitContainers = []corev1.Container{sidecar, harness.Container("after", "/bin/probe", "exit", "0")}
	dir := "/var/lib/" + ns
	shared(pod, dir)
	pod = s.Run(t, pod)
	pid := s.ContainerPID(t, pod, "side")
	s.Exec(t, "kill", "-9", fmt.Sprint(pid))
	pod = s.WaitPod(t, pod, "to have its sidecar back", func(p *corev1.Pod) error {
		if st := harness.Status(p, "side"); st.RestartCount != 1 || st.State.Running == nil {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	pid = s.ContainerPID(t, pod, "side")
	if err := os.WriteFile(s.Path(dir+"/go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	pod = s.WaitPod(t, pod, "to end", harness.PodEnded)
	if pod.Status.Phase != corev1.PodSucceeded || harness.Alive(pid) {
		t.Errorf("phase %s, sidecar alive: %t", pod.Status.Phase, harness.Alive(pid))
	}
}

func TestEphemeralContainer(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "app", "/bin/probe", "sleep"))
	main := s.ContainerPID(t, pod, "main")
	s.Kubectl(t, "-n", ns, "debug", "app", "--image="+pod.Spec.Containers[0].Image, "--image-pull-policy=IfNotPresent",
		"--container=debugger", "--target=main", "--", "/bin/probe", "sleep")
	pod = s.WaitPod(t, pod, "to run the debugger", func(p *corev1.Pod) error {
		if st := harness.Status(p, "debugger"); st == nil || st.State.Running == nil {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	debugger := s.ContainerPID(t, pod, "debugger")
	for _, kind := range []string{"net", "pid", "ipc"} {
		if harness.NamespaceOf(t, main, kind) != harness.NamespaceOf(t, debugger, kind) {
			t.Errorf("the debugger has another %s namespace than its target", kind)
		}
	}
	if out := s.PodExec(t, pod, "debugger", "cat", "/proc/1/cmdline"); out != "/bin/probe\x00sleep\x00" {
		t.Errorf("the debugger sees %q as process 1", out)
	}
}
