package policy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// The cluster of TestScale: pods of nodes that do not exist, in namespaces with ten policies each, and some pods of
// this node.
const (
	scaleNamespaces = 50
	scalePods       = 5000
	scaleLocal      = 30
	scaleNodes      = 50
)

// TestScale logs how long it takes until packets are judged by a change, with 5,000 pods and 500 policies: make
// policy-scale.
func TestScale(t *testing.T) {
	if os.Getenv("KUBELITH_POLICY_SCALE") == "" {
		t.Skip("make policy-scale runs it")
	}
	s := harness.Start(t, harness.Options{})
	config := s.RESTConfig(t)
	config.QPS, config.Burst = 2000, 2000
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	own := s.Node(t).Name
	begun := time.Now()
	populate(t, s, cs, own)
	t.Logf("%d pods and %d policies after %s", scalePods+scaleLocal, scaleNamespaces*10, time.Since(begun))

	ns, other := s.Namespace(t), s.Namespace(t)
	here := func(pod *corev1.Pod) *corev1.Pod {
		pod.Spec.NodeName = own
		return s.Run(t, pod)
	}
	a, b := here(server(ns, "a")), here(server(other, "b"))
	conn, err := harness.DialFrom(t.Context(), s.ContainerPID(t, b, "main"), "udp", net.JoinHostPort(a.Status.PodIP, "9000"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	policy(t, s, ns, "some", scalePolicy("0"))
	label := func(kind, name, value string) func() error {
		patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{"scale":%q}}}`, value))
		return func() (err error) {
			if kind == "pod" {
				_, err = cs.CoreV1().Pods(other).Patch(t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			} else {
				_, err = cs.CoreV1().Namespaces().Patch(t.Context(), name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			}
			return err
		}
	}
	replace := func(value string) func() error {
		return func() error {
			_, err := cs.NetworkingV1().NetworkPolicies(ns).Patch(t.Context(), "some", "application/merge-patch+json",
				[]byte(`{"spec":{"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"scale":"1"}},"podSelector":{"matchLabels":{"scale":"`+value+`"}}}]}]}}`), metav1.PatchOptions{})
			return err
		}
	}
	for _, f := range []func() error{label("namespace", other, "1"), label("pod", "b", "1"), replace("1")} {
		if err := f(); err != nil {
			t.Fatal(err)
		}
	}
	echo := &echo{conn: conn}
	harness.Eventually(t, time.Minute, "the first policy", func() error { return echo.expect(true) })
	for what, change := range map[string][2]func() error{
		"a policy":             {replace("2"), replace("1")},
		"a pod's labels":       {label("pod", "b", "2"), label("pod", "b", "1")},
		"a namespace's labels": {label("namespace", other, "2"), label("namespace", other, "1")},
	} {
		var took []time.Duration
		for i := range 100 {
			begun := time.Now()
			if err := change[i%2](); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, time.Minute, what, func() error { return echo.expect(i%2 == 1) })
			took = append(took, time.Since(begun))
		}
		slices.Sort(took)
		t.Logf("%s: packets are judged by it after %s (median), %s (p99), %s (longest of %d)", what, took[len(took)/2], took[len(took)*99/100-1], took[len(took)-1], len(took))
	}
}

func scalePolicy(value string) string {
	return "podSelector: {matchLabels: {app: a}}\ningress: [{from: [{podSelector: {matchLabels: {scale: \"" + value + "\"}}}]}]"
}

// echo sends numbers on one UDP socket: a flow that exists.
type echo struct {
	conn net.Conn
	last int
}

// expect is nil when an answer comes, or none in three times 20 ms.
func (e *echo) expect(answer bool) error {
	for range 3 {
		e.last++
		want := fmt.Sprintf("%d\n", e.last)
		if _, err := e.conn.Write([]byte(want)); err != nil {
			return err
		}
		if err := e.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		for buffer := make([]byte, 512); ; {
			n, err := e.conn.Read(buffer)
			if err != nil {
				break // none in time
			}
			if !strings.Contains(string(buffer[:n]), strings.TrimSpace(want)) {
				continue // a late one
			}
			if answer {
				return nil
			}
			return fmt.Errorf("packets pass")
		}
		if answer {
			return fmt.Errorf("no packet passes")
		}
	}
	return nil
}

// populate creates the cluster around a node.
func populate(t *testing.T, s *harness.Server, cs kubernetes.Interface, own string) {
	t.Helper()
	each := func(n int, f func(ctx context.Context, i int) error) {
		t.Helper()
		group, ctx := errgroup.WithContext(t.Context())
		group.SetLimit(16)
		for i := range n {
			group.Go(func() error { return f(ctx, i) })
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
	namespace := func(i int) string { return fmt.Sprintf("scale-%d", i%scaleNamespaces) }
	each(scaleNodes, func(ctx context.Context, i int) error {
		_, err := cs.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("hollow-%d", i)}}, metav1.CreateOptions{})
		return err
	})
	each(scaleNamespaces, func(ctx context.Context, i int) error {
		object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace(i), Labels: map[string]string{"team": fmt.Sprint(i % 5)}}}
		_, err := cs.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{})
		return err
	})
	each(scalePods, func(ctx context.Context, i int) error {
		pod := harness.Pod(namespace(i), fmt.Sprintf("p%d", i), "true")
		pod.Labels = map[string]string{"app": fmt.Sprint(i % 20)}
		pod.Spec.NodeName = fmt.Sprintf("hollow-%d", i%scaleNodes)
		pod.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		pod, err := created(ctx, cs, pod)
		if err != nil {
			return err
		}
		ip := netip.AddrFrom4([4]byte{10, 42, byte(100 + i/250), byte(1 + i%250)}).String()
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}
		_, err = cs.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
		return err
	})
	each(scaleLocal, func(ctx context.Context, i int) error {
		pod := harness.Pod(namespace(i), fmt.Sprintf("local-%d", i), "/bin/probe", "sleep")
		pod.Labels = map[string]string{"app": fmt.Sprint(i % 10)}
		pod.Spec.NodeName = own
		_, err := created(ctx, cs, pod)
		return err
	})
	for n := range scaleNamespaces {
		for i := range 10 {
			policy(t, s, namespace(n), fmt.Sprint("policy-", i), fmt.Sprintf(`
podSelector: {matchLabels: {app: "%d"}}
policyTypes: [Ingress, Egress]
ingress: [{from: [{namespaceSelector: {matchLabels: {team: "%d"}}}, {podSelector: {}}], ports: [{port: %d}]}]
egress: [{to: [{namespaceSelector: {}}]}]`, i, i%5, 8000+i))
		}
	}
	for i := range scaleLocal {
		pod, err := cs.CoreV1().Pods(namespace(i)).Get(t.Context(), fmt.Sprintf("local-%d", i), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.WaitRunning(t, pod)
	}
}

// created creates a pod as soon as its namespace has an account for it.
func created(ctx context.Context, cs kubernetes.Interface, pod *corev1.Pod) (*corev1.Pod, error) {
	for {
		out, err := cs.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(100 * time.Millisecond):
		}
	}
}
