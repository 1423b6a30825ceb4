package pods

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

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

// TestInitContainersOnce: the kubelet learns of a container's end from containerd's events, and a pod that is
// initialized stays so when its init containers have been removed. With this feature gate (EventedPLEG) the kubelet
// would forget that, if containerd's answers had a timestamp.
func TestInitContainersOnce(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "initialized", "/bin/probe", "sleep")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	first := harness.Container("first", harness.Shell("echo first >> /shared/ran")...)
	second := harness.Container("second", harness.Shell("echo second >> /shared/ran")...)
	pod.Spec.InitContainers = []corev1.Container{first, second}
	dir := "/var/lib/" + ns
	shared(pod, dir)
	pod = s.Run(t, pod)

	conn, err := s.Containerd()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	cri := runtimeapi.NewRuntimeServiceClient(conn)
	for _, status := range pod.Status.InitContainerStatuses {
		_, id, _ := strings.Cut(status.ContainerID, "://")
		if _, err := cri.RemoveContainer(t.Context(), &runtimeapi.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
	}
	s.Exec(t, "kill", "-9", fmt.Sprint(s.ContainerPID(t, pod, "main")))
	s.WaitPod(t, pod, "to have its container back", func(p *corev1.Pod) error {
		if st := harness.Status(p, "main"); st.RestartCount != 1 || st.State.Running == nil {
			return fmt.Errorf("%+v", st)
		}
		return harness.PodReady(p)
	})
	if ran, err := os.ReadFile(s.Path(dir + "/ran")); err != nil || string(ran) != "first\nsecond\n" {
		t.Errorf("the init containers ran as %q, %v, want each once", ran, err)
	}
	metrics := s.Kubectl(t, "get", "--raw", "/api/v1/nodes/"+s.Node(t).Name+"/proxy/metrics")
	if !regexp.MustCompile(`(?m)^kubelet_evented_pleg_connection_latency_seconds_count [1-9]`).MatchString(metrics) {
		t.Error("the kubelet has seen no event of containerd's")
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
