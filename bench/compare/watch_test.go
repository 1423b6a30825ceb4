package compare

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

const (
	// retryEvery is how soon the observer retries while the apiserver does not answer: the resolution of the start-up
	// times.
	retryEvery = 5 * time.Millisecond
	// patience bounds every wait.
	patience = 3 * time.Minute
)

// impatient hides Retry-After from client-go, which would wait for whole seconds.
func impatient(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(r)
		if resp != nil {
			resp.Header.Del("Retry-After")
		}
		return resp, err
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// follow watches until see reports that it has seen enough, and returns the time at which that event came.
// A watch that fails or ends is opened again.
func follow(t *testing.T, what string, open func(context.Context) (watch.Interface, error), see func(watch.Event) bool) time.Time {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var last error
	for ctx.Err() == nil {
		w, err := open(ctx)
		if err != nil {
			last = err
			time.Sleep(retryEvery)
			continue
		}
		for event := range w.ResultChan() {
			if see(event) {
				at := time.Now()
				w.Stop()
				return at
			}
		}
		w.Stop()
	}
	t.Errorf("%s: not within %s (%v)", what, patience, last)
	return time.Now()
}

// nodeReady waits for a Ready condition that was reported after since: after a restart the node's old one is still
// there.
func nodeReady(t *testing.T, client kubernetes.Interface, since time.Time) time.Time {
	return follow(t, "node Ready", func(ctx context.Context) (watch.Interface, error) {
		return client.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{})
	}, func(e watch.Event) bool {
		node, ok := e.Object.(*corev1.Node)
		if !ok {
			return false
		}
		for _, c := range node.Status.Conditions {
			// The heartbeat has whole seconds, rounded down; since is at the beginning of one (cluster.start).
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && !c.LastHeartbeatTime.Time.Before(since.Truncate(time.Second)) {
				return true
			}
		}
		return false
	})
}

// podsReady waits for n pods whose names begin with prefix to be Ready at once.
func podsReady(t *testing.T, client kubernetes.Interface, prefix string, n int) time.Time {
	ready := map[string]bool{}
	return follow(t, "pods "+prefix+" Ready", func(ctx context.Context) (watch.Interface, error) {
		clear(ready)
		return client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	}, func(e watch.Event) bool {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || !strings.HasPrefix(pod.Name, prefix) {
			return false
		}
		delete(ready, pod.Name)
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && e.Type != watch.Deleted {
				ready[pod.Name] = true
			}
		}
		return len(ready) >= n
	})
}

// podsGone waits for the last pod of the namespace to be deleted.
func podsGone(t *testing.T, client kubernetes.Interface) time.Time {
	left := map[string]bool{}
	return follow(t, "pods gone", func(ctx context.Context) (watch.Interface, error) {
		clear(left)
		return client.CoreV1().Pods(metav1.NamespaceDefault).Watch(ctx, metav1.ListOptions{})
	}, func(e watch.Event) bool {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok {
			return false
		}
		left[pod.Name] = true
		if e.Type == watch.Deleted {
			delete(left, pod.Name)
		}
		return len(left) == 0
	})
}

// moment is a time that one goroutine finds and another waits for.
type moment struct {
	wg sync.WaitGroup
	at time.Time
}

// concurrently finds a moment in the background.
func concurrently(find func() time.Time) *moment {
	m := &moment{}
	m.wg.Go(func() { m.at = find() })
	return m
}

func (m *moment) since(began time.Time) float64 {
	m.wg.Wait()
	return m.at.Sub(began).Seconds()
}
