package harness

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace creates a namespace with a random name for one test. It is deleted at the end, without waiting; when the
// test has failed, its pods, its events and the server's log are shown first.
func (a API) Namespace(t testing.TB) string {
	t.Helper()
	client := a.Client(t)
	base := strings.ToLower(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, strings.TrimPrefix(t.Name(), "Test")))
	if len(base) > 30 {
		base = base[:30]
	}
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "t-" + strings.Trim(base, "-") + "-"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if t.Failed() {
			a.dump(ctx, t, ns.Name)
		}
		client.CoreV1().Namespaces().Delete(ctx, ns.Name, metav1.DeleteOptions{}) // best effort: the server may be gone
	})
	Eventually(t, 30*time.Second, "the default service account of "+ns.Name, func() error {
		_, err := client.CoreV1().ServiceAccounts(ns.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return ns.Name
}

// dump shows information about a failed test.
func (a API) dump(ctx context.Context, t testing.TB, namespace string) {
	var b strings.Builder
	client, err := a.client()
	if err == nil {
		pods, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(&b, "pods: %v\n", err)
		} else {
			for i := range pods.Items {
				p := &pods.Items[i]
				fmt.Fprintf(&b, "pod %s on %q: %s %s\n", p.Name, p.Spec.NodeName, p.Status.Phase, containerStates(p))
			}
		}
		events, err := client.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			fmt.Fprintf(&b, "events: %v\n", err)
		} else {
			for _, e := range events.Items {
				fmt.Fprintf(&b, "event %s %s/%s %s: %s (x%d)\n", e.LastTimestamp.Format(time.TimeOnly), e.InvolvedObject.Kind, e.InvolvedObject.Name, e.Reason, e.Message, e.Count)
			}
		}
	}
	t.Logf("namespace %s:\n%slast lines of the server's log:\n%s", namespace, b.String(), lastLines(a.logs(), 100))
}
