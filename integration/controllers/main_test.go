// Package controllers tests the workload controllers against a real server: what they create, in which
// order, and what remains when it is deleted. Tests that need the node's CPU for themselves are serial
// (the go tool runs them before the parallel ones).
package controllers

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// template is a pod template of one container that sleeps until SIGTERM and has the given environment variable VERSION.
func template(app, version string) corev1.PodTemplateSpec {
	grace := int64(1)
	c := harness.Container("main", "/bin/probe", "sleep")
	c.Env = []corev1.EnvVar{{Name: "VERSION", Value: version}}
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c}, TerminationGracePeriodSeconds: &grace},
	}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

// pods lists the pods of an app, those being deleted included.
func pods(t testing.TB, s *harness.Server, ns, app string) []corev1.Pod {
	t.Helper()
	list, err := s.Client(t).CoreV1().Pods(ns).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// waitPods waits until an app has exactly n pods, all Ready and none being deleted.
func waitPods(t testing.TB, s *harness.Server, ns, app string, n int) []corev1.Pod {
	t.Helper()
	var got []corev1.Pod
	harness.Eventually(t, harness.PodTimeout, fmt.Sprintf("%d pods of %s", n, app), func() error {
		got = pods(t, s, ns, app)
		if len(got) != n {
			return fmt.Errorf("there are %d", len(got))
		}
		for i := range got {
			if got[i].DeletionTimestamp != nil {
				return fmt.Errorf("%s is being deleted", got[i].Name)
			}
			if err := harness.PodReady(&got[i]); err != nil {
				return fmt.Errorf("%s: %w", got[i].Name, err)
			}
		}
		return nil
	})
	return got
}

// recorder keeps the state of an app's pods from a watch and calls seen after each event with all of them.
// stop returns when the watch has told as much as a list does, and seen is called no more.
func recorder(t testing.TB, s *harness.Server, ns, app string, seen func(event watch.Event, pod *corev1.Pod, now map[string]*corev1.Pod)) (stop func()) {
	t.Helper()
	client := s.Client(t).CoreV1().Pods(ns)
	opts := metav1.ListOptions{LabelSelector: "app=" + app}
	list, err := client.List(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	opts.ResourceVersion = list.ResourceVersion
	w, err := client.Watch(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	now := map[string]*corev1.Pod{}
	for i := range list.Items {
		now[list.Items[i].Name] = &list.Items[i]
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			mu.Lock()
			if event.Type == watch.Deleted {
				delete(now, pod.Name)
			} else {
				now[pod.Name] = pod
			}
			seen(event, pod, now)
			mu.Unlock()
		}
	}()
	return func() {
		t.Helper()
		harness.Eventually(t, 10*time.Second, "the watch to catch up", func() error {
			listed := pods(t, s, ns, app)
			mu.Lock()
			defer mu.Unlock()
			if len(listed) != len(now) {
				return fmt.Errorf("%d pods listed, %d watched", len(listed), len(now))
			}
			for _, p := range listed {
				if known := now[p.Name]; known == nil || known.UID != p.UID {
					return fmt.Errorf("%s is not known", p.Name)
				}
			}
			return nil
		})
		w.Stop()
		<-done
	}
}

func ptr[T any](v T) *T { return &v }
