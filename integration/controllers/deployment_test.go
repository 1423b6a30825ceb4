package controllers

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/integration/harness"
)

func createDeployment(t testing.TB, s *harness.Server, ns, name string, replicas int32) {
	t.Helper()
	one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
	_, err := s.Client(t).AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: selector(name), Template: template(name, "1"),
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &zero},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// expectVersion looks at the environment of the pods' processes.
func expectVersion(t testing.TB, s *harness.Server, list []corev1.Pod, version string) {
	t.Helper()
	for i := range list {
		environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", s.ContainerPID(t, &list[i], "main")))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains("\x00"+string(environ), "\x00VERSION="+version+"\x00") {
			t.Errorf("the process of %s has no VERSION=%s", list[i].Name, version)
		}
	}
}

func TestDeploymentScale(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createDeployment(t, s, ns, "web", 1)
	waitPods(t, s, ns, "web", 1)
	s.Kubectl(t, "-n", ns, "scale", "deployment/web", "--replicas=4")
	pids := map[int]bool{}
	for _, p := range waitPods(t, s, ns, "web", 4) {
		pids[s.ContainerPID(t, &p, "main")] = true
	}
	if len(pids) != 4 {
		t.Fatalf("4 pods have %d processes", len(pids))
	}
	s.Kubectl(t, "-n", ns, "scale", "deployment/web", "--replicas=1")
	left := waitPods(t, s, ns, "web", 1)
	alive := 0
	for pid := range pids {
		if harness.Alive(pid) {
			alive++
		}
	}
	if alive != 1 || !harness.Alive(s.ContainerPID(t, &left[0], "main")) {
		t.Errorf("after scaling to 1, %d of the 4 processes live", alive)
	}
}

// TestDeploymentRollingUpdate observes every intermediate state: with maxSurge 1 and maxUnavailable 0 there
// are never more than 4 pods wanted nor fewer than 3 Ready.
func TestDeploymentRollingUpdate(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createDeployment(t, s, ns, "web", 3)
	expectVersion(t, s, waitPods(t, s, ns, "web", 3), "1")

	most, fewest := 0, 3
	stop := recorder(t, s, ns, "web", func(_ watch.Event, _ *corev1.Pod, now map[string]*corev1.Pod) {
		wanted, ready := 0, 0
		for _, p := range now {
			if p.DeletionTimestamp == nil {
				wanted++
				if harness.PodReady(p) == nil {
					ready++
				}
			}
		}
		most, fewest = max(most, wanted), min(fewest, ready)
	})
	s.Kubectl(t, "-n", ns, "set", "env", "deployment/web", "VERSION=2")
	s.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
	expectVersion(t, s, waitPods(t, s, ns, "web", 3), "2")
	stop()
	// Upstream's controller counts what the ReplicaSets are asked for: the new one may make its pod before the old one
	// has deleted its own.
	if most < 4 || most > 5 {
		t.Errorf("during the update there were at most %d pods; maxSurge allows, and the update needs, 4", most)
	}
	if fewest < 3 {
		t.Errorf("during the update only %d pods were Ready; maxUnavailable is 0", fewest)
	}

	s.Kubectl(t, "-n", ns, "rollout", "undo", "deployment/web")
	s.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
	expectVersion(t, s, waitPods(t, s, ns, "web", 3), "1")
	sets, err := s.Client(t).AppsV1().ReplicaSets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets.Items) != 2 {
		t.Errorf("the rollback left %d ReplicaSets, not the 2 it had", len(sets.Items))
	}
}

func TestDeploymentPause(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	createDeployment(t, s, ns, "web", 1)
	before := waitPods(t, s, ns, "web", 1)
	s.Kubectl(t, "-n", ns, "rollout", "pause", "deployment/web")
	s.Kubectl(t, "-n", ns, "set", "env", "deployment/web", "VERSION=2")
	harness.Eventually(t, 10*time.Second, "the controller to have seen the change", func() error {
		d, err := s.Client(t).AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ObservedGeneration < d.Generation {
			return fmt.Errorf("generation %d of %d", d.Status.ObservedGeneration, d.Generation)
		}
		return nil
	})
	harness.Consistently(t, 2*time.Second, "a paused Deployment rolls nothing out", func() error {
		now := pods(t, s, ns, "web")
		if len(now) != 1 || now[0].UID != before[0].UID {
			return fmt.Errorf("the pods have changed")
		}
		return nil
	})
	s.Kubectl(t, "-n", ns, "rollout", "resume", "deployment/web")
	s.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=90s")
	expectVersion(t, s, waitPods(t, s, ns, "web", 1), "2")
}
