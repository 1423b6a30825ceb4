package pods

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/integration/harness"
)

func httpProbe(path string) *corev1.Probe {
	return &corev1.Probe{
		ProbeHandler:     corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(8080)}},
		PeriodSeconds:    1,
		FailureThreshold: 2,
	}
}

// request talks to the pod's own server, as its neighbours do.
func request(t testing.TB, s *harness.Server, pod *corev1.Pod, path string) {
	t.Helper()
	if _, err := s.HTTPGet("http://" + pod.Status.PodIP + ":8080" + path); err != nil {
		t.Fatal(err)
	}
}

// TestReadinessProbe: failing, it takes the pod out of service and leaves the process alone.
func TestReadinessProbe(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "ready", "/bin/probe", "serve")
	pod.Spec.Containers[0].ReadinessProbe = httpProbe("/healthz")
	pod = s.Run(t, pod)
	s.Kubectl(t, "-n", ns, "expose", "pod", "ready", "--port=80", "--target-port=8080")
	endpoints := func(want string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, "the Service's ready endpoints to be ["+want+"]", func() error {
			out := s.Kubectl(t, "-n", ns, "get", "endpointslices", "-l=kubernetes.io/service-name=ready",
				"-o=jsonpath={.items[*].endpoints[?(@.conditions.ready==true)].addresses[0]}")
			if out != want {
				return fmt.Errorf("they are %q", out)
			}
			return nil
		})
	}
	pid := s.ContainerPID(t, pod, "main")
	endpoints(pod.Status.PodIP)
	request(t, s, pod, "/fail")
	endpoints("")
	request(t, s, pod, "/heal")
	endpoints(pod.Status.PodIP)
	pod = s.WaitRunning(t, pod)
	if st := harness.Status(pod, "main"); st.RestartCount != 0 || !harness.Alive(pid) {
		t.Errorf("the container was restarted: %+v", st)
	}
}

// TestStartupProbe holds the liveness probe back, which alone would kill this slow starter.
func TestStartupProbe(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "slow", harness.Shell("sleep 5; exec /bin/probe serve")...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	c := &pod.Spec.Containers[0]
	c.LivenessProbe = httpProbe("/healthz")
	c.LivenessProbe.FailureThreshold = 1
	c.StartupProbe = httpProbe("/healthz")
	c.StartupProbe.FailureThreshold = 30
	c.LivenessProbe.TimeoutSeconds, c.StartupProbe.TimeoutSeconds = 30, 30 // a late answer is no failure
	pod = s.Run(t, pod)
	st := harness.Status(pod, "main")
	if st.RestartCount != 0 || st.Started == nil || !*st.Started {
		t.Errorf("%+v", st)
	}
	pid := s.ContainerPID(t, pod, "main")
	request(t, s, pod, "/fail") // from now on the liveness probe counts
	s.WaitPod(t, pod, "to be restarted", func(p *corev1.Pod) error {
		if harness.Alive(pid) {
			return fmt.Errorf("the first process lives")
		}
		return nil
	})
}
