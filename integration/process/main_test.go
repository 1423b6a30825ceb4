// Package process tests the process itself: its start, its ordered stop, being killed at any moment, its
// notifications to systemd, and the other commands of the executable. Containers must not notice any of it.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{})

func TestMain(m *testing.M) {
	harness.Parallel(4) // most have servers of their own
	harness.Main(m, cluster)
}

// controlPlane switches off what needs containers.
var controlPlane = []string{"kubelet", "containerd", "proxy", "dns"}

// process identifies a process of the host.
type process struct {
	pid   int
	start uint64
}

// processOf is the first process of a pod's container main.
func processOf(t *testing.T, s *harness.Server, pod *corev1.Pod) process {
	t.Helper()
	pid := s.ContainerPID(t, pod, "main")
	return process{pid, harness.StartTime(t, pid)}
}

// same checks that a process still is what it was.
func (p process) same(t *testing.T, what string) {
	t.Helper()
	if !harness.Alive(p.pid) {
		t.Errorf("%s: process %d has ended", what, p.pid)
	} else if now := harness.StartTime(t, p.pid); now != p.start {
		t.Errorf("%s: process %d is another one now", what, p.pid)
	}
}

// rolledOut is nil when a Deployment has what it wants and nothing more.
func rolledOut(s *harness.Server, t *testing.T, ns, name string) error {
	d, err := s.Client(t).AppsV1().Deployments(ns).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	st := d.Status
	if n := *d.Spec.Replicas; st.ObservedGeneration < d.Generation || st.UpdatedReplicas != n || st.ReadyReplicas != n || st.Replicas != n {
		return fmt.Errorf("deployment %s wants %d pods: %d, %d updated, %d ready", name, n, st.Replicas, st.UpdatedReplicas, st.ReadyReplicas)
	}
	return nil
}

// agree is nil when containerd runs exactly what the API's pods consist of: one sandbox for each pod and its
// containers, and the bridge has one port for each pod with its own network.
func agree(ctx context.Context, t *testing.T, s *harness.Server) error {
	pods, err := s.Client(t).CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	want := map[string]string{}
	for _, p := range pods.Items {
		if p.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is being deleted", p.Name)
		}
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Running == nil {
				return fmt.Errorf("container %s of pod %s does not run", c.Name, p.Name)
			}
			_, id, _ := strings.Cut(c.ContainerID, "://")
			want[id] = p.Name
		}
	}
	out := strings.Fields(s.Exec(t, s.BinaryPath(), "ctr", "tasks", "list", "--quiet"))
	running := map[string]bool{}
	for _, id := range out {
		running[id] = true
	}
	for id, pod := range want {
		if !running[id] {
			return fmt.Errorf("container %s of pod %s is no task", id, pod)
		}
	}
	if n := len(pods.Items) + len(want); len(out) != n {
		return fmt.Errorf("containerd has %d tasks, the API %d sandboxes and containers", len(out), n)
	}
	ports := strings.Count(s.Exec(t, "ip", "-o", "link", "show", "master", "cni0"), "\n")
	if ports != len(pods.Items) {
		return fmt.Errorf("the bridge has %d ports for %d pods", ports, len(pods.Items))
	}
	return nil
}

// alive is nil while the server runs.
func alive(s *harness.Server) error {
	select {
	case <-s.Exited():
		return harness.Permanent(errors.New("the server has ended"))
	default:
		return nil
	}
}

// exists reports whether the sandbox has a file.
func exists(s *harness.Server, path string) bool {
	_, err := os.Lstat(s.Path(path))
	return err == nil
}

// within fails the test when something took longer.
func within(t *testing.T, what string, took, limit time.Duration) {
	t.Helper()
	t.Logf("%s: %s", what, took.Round(time.Millisecond))
	if took > limit {
		t.Errorf("%s took %s, more than %s", what, took, limit)
	}
}
