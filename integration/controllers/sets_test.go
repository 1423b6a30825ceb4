package controllers

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/integration/harness"
)

// TestStatefulSet: one pod after the other is Ready, names and hostnames are stable, the last goes first.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)

	var faults, removed []string
	stop := recorder(t, s, ns, "db", func(event watch.Event, pod *corev1.Pod, now map[string]*corev1.Pod) {
		switch {
		case event.Type == watch.Added:
			var ordinal int
			fmt.Sscanf(pod.Name, "db-%d", &ordinal)
			for i := range ordinal {
				if earlier := now[fmt.Sprintf("db-%d", i)]; earlier == nil || harness.PodReady(earlier) != nil {
					faults = append(faults, fmt.Sprintf("%s was created before db-%d was Ready", pod.Name, i))
				}
			}
		case event.Type == watch.Deleted:
			removed = append(removed, pod.Name)
		case pod.DeletionTimestamp != nil && pod.Name == "db-1" && now["db-2"] != nil:
			faults = append(faults, "db-1 was deleted before db-2 was gone")
		}
	})
	_, err := s.Client(t).AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec:       appsv1.StatefulSetSpec{ServiceName: "db", Replicas: ptr(int32(3)), Selector: selector("db"), Template: template("db", "1")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	list := waitPods(t, s, ns, "db", 3)
	names := map[string]*corev1.Pod{}
	for i := range list {
		names[list[i].Name] = &list[i]
		if host := strings.TrimSpace(s.PodExec(t, &list[i], "", "hostname")); host != list[i].Name {
			t.Errorf("%s has the hostname %q", list[i].Name, host)
		}
	}
	if names["db-0"] == nil || names["db-1"] == nil || names["db-2"] == nil {
		t.Fatalf("the pods are %v", names)
	}
	s.Kubectl(t, "-n", ns, "scale", "statefulset/db", "--replicas=1")
	waitPods(t, s, ns, "db", 1)
	stop()
	if strings.Join(removed, " ") != "db-2 db-1" {
		t.Errorf("removed in the order %v", removed)
	}
	for _, f := range faults {
		t.Error(f)
	}

	s.Kubectl(t, "-n", ns, "delete", "pod", "db-0")
	harness.Eventually(t, harness.PodTimeout, "db-0 to come back under its name", func() error {
		now := pods(t, s, ns, "db")
		if len(now) != 1 || now[0].Name != "db-0" || now[0].UID == names["db-0"].UID {
			return fmt.Errorf("%d pods", len(now))
		}
		return harness.PodReady(&now[0])
	})
}

func TestDaemonSet(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	_, err := s.Client(t).AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "agent"},
		Spec:       appsv1.DaemonSetSpec{Selector: selector("agent"), Template: template("agent", "1")},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := waitPods(t, s, ns, "agent", 1)
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if first[0].Spec.NodeName != nodes.Items[0].Name {
		t.Errorf("the pod is on %q", first[0].Spec.NodeName)
	}
	s.Kubectl(t, "-n", ns, "set", "env", "daemonset/agent", "VERSION=2")
	s.Kubectl(t, "-n", ns, "rollout", "status", "daemonset/agent", "--timeout=90s")
	expectVersion(t, s, waitPods(t, s, ns, "agent", 1), "2")

	s.Kubectl(t, "-n", ns, "patch", "daemonset", "agent", "-p", `{"spec":{"template":{"spec":{"nodeSelector":{"no":"such-node"}}}}}`)
	harness.Eventually(t, 30*time.Second, "no pod on a node that does not match", func() error {
		if n := len(pods(t, s, ns, "agent")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}
