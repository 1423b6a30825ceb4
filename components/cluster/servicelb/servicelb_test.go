package servicelb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// start runs the component on a cluster, until the test ends. What it started has ended then; the shared informers,
// which run before and after, are not its own.
func start(t *testing.T, cs *fake.Clientset) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	stop := make(chan struct{})
	shared := informers.NewSharedInformerFactory(cs, 0)
	shared.Core().V1().Services().Informer()
	shared.Core().V1().Nodes().Informer()
	shared.Discovery().V1().EndpointSlices().Informer()
	shared.Start(stop)
	shared.WaitForCacheSync(stop)
	before := goleak.IgnoreCurrent()
	log := logrus.New()
	log.SetOutput(t.Output())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- New(Options{Log: log}).run(ctx, cs, shared, newProver(Options{}, answers), func() { close(ready) })
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		goleak.VerifyNone(t, before)
		close(stop)
		shared.Shutdown()
	})
	select {
	case <-ready:
	case <-time.After(10 * time.Second):
		t.Fatal("it is not ready")
	}
}

// answers is the handshake with a kubelet that is at its Node's address.
func answers(context.Context, string, netip.AddrPort) error { return nil }

// patches are the names of the Services that were patched, with the subresource, in order.
func patches(t *testing.T, cs *fake.Clientset) (names []string) {
	t.Helper()
	for _, a := range cs.Actions() {
		p, ok := a.(clienttesting.PatchAction)
		if !ok || p.GetResource().Resource != "services" {
			continue
		}
		names = append(names, p.GetName()+"/"+p.GetSubresource())
		if want := fmt.Sprintf(`"uid":%q`, p.GetName()); !strings.Contains(string(p.GetPatch()), want) {
			t.Errorf("a patch without the UID creates a deleted Service again: %s", p.GetPatch())
		}
	}
	return names
}

func eventually(t *testing.T, what string, f func() error) {
	t.Helper()
	err := f()
	for deadline := time.Now().Add(10 * time.Second); err != nil && time.Now().Before(deadline); err = f() {
		time.Sleep(10 * time.Millisecond)
	}
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// addressesAre waits until the status of a Service has these addresses.
func addressesAre(t *testing.T, cs kubernetes.Interface, name string, want ...string) {
	t.Helper()
	eventually(t, "addresses of "+name, func() error {
		s, err := cs.CoreV1().Services("ns").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var got []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			got = append(got, i.IP)
			if i.IPMode == nil || *i.IPMode != corev1.LoadBalancerIPModeVIP {
				return fmt.Errorf("%s is not a virtual address", i.IP)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

// eventIs waits for an Event about a Service.
func eventIs(t *testing.T, cs kubernetes.Interface, name, kind, reason, message string) {
	t.Helper()
	eventually(t, "Event of "+name, func() error {
		events, err := cs.CoreV1().Events("ns").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		var all []string
		for _, e := range events.Items {
			if e.InvolvedObject.Name == name && e.Type == kind && e.Reason == reason && e.Message == message && e.Count == 1 {
				return nil
			}
			all = append(all, fmt.Sprintf("%s %s %s %s x%d", e.InvolvedObject.Name, e.Type, e.Reason, e.Message, e.Count))
		}
		return errors.New(strings.Join(all, "\n"))
	})
}

func slice(service, node string, isReady *bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service + "-x", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		Endpoints:  []discoveryv1.Endpoint{{NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: isReady}}},
	}
}

func TestFollowsTheCluster(t *testing.T) {
	yes, no := true, false
	other := lb("other", class("example.org/lb"), has("192.0.2.1"))
	cs := fake.NewClientset(node("n1"), lb("a"), lb("b", younger), lb("c", ports(tcp(81)), local), slice("c", "n1", &no), other)
	start(t, cs)
	ctx := t.Context()
	addressesAre(t, cs, "a", "10.0.0.1")
	eventIs(t, cs, "a", corev1.EventTypeNormal, "LoadBalancerReady", "reachable at 10.0.0.1")
	eventIs(t, cs, "b", corev1.EventTypeWarning, "PortConflict", "port 80/TCP is taken by ns/a on n1")
	addressesAre(t, cs, "b")

	if _, err := cs.DiscoveryV1().EndpointSlices("ns").Update(ctx, slice("c", "n1", &yes), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "c", "10.0.0.1")
	if err := cs.DiscoveryV1().EndpointSlices("ns").Delete(ctx, "c-x", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "c")

	if _, err := cs.CoreV1().Nodes().Create(ctx, node("n2"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "a", "10.0.0.1", "10.0.0.2")
	if err := cs.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "a", "10.0.0.2")

	if err := cs.CoreV1().Services("ns").Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "b", "10.0.0.2")
	eventIs(t, cs, "b", corev1.EventTypeNormal, "LoadBalancerReady", "reachable at 10.0.0.2")

	events, err := cs.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events.Items {
		if e.Count != 1 {
			t.Errorf("reported %d times: %s %s", e.Count, e.InvolvedObject.Name, e.Message)
		}
	}
	got, err := cs.CoreV1().Services("ns").Get(ctx, "other", metav1.GetOptions{})
	if err != nil || len(got.Status.LoadBalancer.Ingress) != 1 || got.Status.LoadBalancer.Ingress[0].IP != "192.0.2.1" {
		t.Errorf("the Service of another class: %v, %v", got.Status, err)
	}
}

// TestWritesOnlyChanges: what is in place is not written again.
func TestWritesOnlyChanges(t *testing.T) {
	cs := fake.NewClientset(node("n1"), lb("a", func(s *corev1.Service) {
		vip := corev1.LoadBalancerIPModeVIP
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1", IPMode: &vip}}
	}), lb("b", ports(tcp(81))))
	start(t, cs)
	addressesAre(t, cs, "b", "10.0.0.1") // the pass is over, or a is done
	if _, err := cs.CoreV1().Services("ns").Create(t.Context(), lb("c", ports(tcp(82))), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	addressesAre(t, cs, "c", "10.0.0.1")
	if got, want := patches(t, cs), []string{"b/status", "c/status"}; !slices.Equal(got, want) {
		t.Errorf("written: %v, want %v", got, want)
	}
}

// TestTriesAgain: a write that fails is retried, without a change that triggers it.
func TestTriesAgain(t *testing.T) {
	cs := fake.NewClientset(node("n1"), lb("a"))
	// By then the signals of the beginning are used up.
	fails := time.Now().Add(10 * settle)
	cs.PrependReactor("patch", "services", func(clienttesting.Action) (bool, runtime.Object, error) {
		if time.Now().Before(fails) {
			return true, nil, errors.New("the test's own error")
		}
		return false, nil, nil
	})
	start(t, cs)
	addressesAre(t, cs, "a", "10.0.0.1")
}

// TestWithdraw: what we wrote goes, and what others wrote stays.
func TestWithdraw(t *testing.T) {
	ctx := t.Context()
	cs := fake.NewClientset(lb("a"), lb("b", has("192.0.2.1")), lb("c"))
	for _, name := range []string{"a", "c"} {
		s, err := cs.CoreV1().Services("ns").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := applyStatus(ctx, cs, s, []netip.Addr{netip.MustParseAddr("10.0.0.1")}); err != nil {
			t.Fatal(err)
		}
	}
	addressesAre(t, cs, "a", "10.0.0.1")
	cs.ClearActions()
	if err := withdraw(ctx, cs); err != nil {
		t.Fatal(err)
	}
	if got, want := patches(t, cs), []string{"a/status", "c/status"}; !slices.Equal(got, want) {
		t.Errorf("written: %v, want %v", got, want)
	}
	addressesAre(t, cs, "a")
	addressesAre(t, cs, "c")
	b, err := cs.CoreV1().Services("ns").Get(ctx, "b", metav1.GetOptions{})
	if err != nil || len(b.Status.LoadBalancer.Ingress) != 1 {
		t.Errorf("another client's address: %v, %v", b.Status, err)
	}
}
