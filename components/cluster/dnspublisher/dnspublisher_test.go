package dnspublisher

import (
	"context"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
)

func testNode(name, role string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), Labels: map[string]string{}}}
	if role != "" {
		n.Labels[names.RoleLabel] = role
	}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

func newTestPublisher(t *testing.T, nodes ...*corev1.Node) (*fake.Clientset, *publisher) {
	t.Helper()
	client := fake.NewClientset()
	for _, n := range nodes {
		if err := client.Tracker().Add(n); err != nil {
			t.Fatal(err)
		}
	}
	log := logrus.New()
	log.SetOutput(io.Discard)
	shared := informers.NewSharedInformerFactory(client, 0)
	t.Cleanup(shared.Shutdown)
	return client, newPublisher(client, Options{ClusterDNS: []net.IP{net.ParseIP("10.43.0.10"), net.ParseIP("fd43::a")}, Log: log,
		Informers: func() informers.SharedInformerFactory { return shared }})
}

// published runs a publisher against the objects.
func published(t *testing.T, nodes ...*corev1.Node) *fake.Clientset {
	t.Helper()
	client, p := newTestPublisher(t, nodes...)
	publish(t, p)
	return client
}

// publish runs a publisher until the test ends, and returns when it is ready.
func publish(t *testing.T, p *publisher) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		p.run(ctx, func() { close(ready) })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	select {
	case <-ready:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was published")
	}
}

// The publisher creates the Service, and a slice of each family for each of our nodes; nodes that do not run Kubelith
// have none.
func TestPublish(t *testing.T) {
	client := published(t, testNode("one", "server", "192.0.2.7"), testNode("two", "agent", "192.0.2.2", "2001:db8::2"), testNode("hollow", "", "192.0.2.3"))
	service, err := client.CoreV1().Services(namespace).Get(t.Context(), names.DNSService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != "10.43.0.10" || len(service.Spec.ClusterIPs) != 2 || len(service.Spec.Selector) != 0 ||
		*service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack || service.Labels["k8s-app"] != "kube-dns" ||
		*service.Spec.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal {
		t.Errorf("service: %+v", service)
	}
	eventually(t, client, map[string]string{
		"kube-dns-one-ipv4": "192.0.2.7", "kube-dns-two-ipv4": "192.0.2.2", "kube-dns-two-ipv6": "2001:db8::2",
	})
	slice, err := client.DiscoveryV1().EndpointSlices(namespace).Get(t.Context(), "kube-dns-two-ipv4", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if *slice.Endpoints[0].NodeName != "two" || *slice.Ports[0].Port != 10053 || slice.Labels[discoveryv1.LabelManagedBy] != managedBy ||
		slice.OwnerReferences[0].Name != "two" {
		t.Errorf("slice: %+v", slice)
	}
}

// What a node claims does not cut off the others from DNS: an address that no pod can reach has no slice, and a slice
// that the API refuses affects its own node only.
func TestPublishDespiteOthers(t *testing.T) {
	client, p := newTestPublisher(t, testNode("one", "server", "192.0.2.1"),
		testNode("loop", "agent", "127.0.0.1", "::1"), testNode("link", "agent", "169.254.1.1", "fe80::1"), testNode("none", "agent", "0.0.0.0", "::"),
		testNode("many", "agent", "224.0.0.1"), testNode("text", "agent", "no address"),
		testNode("late", "agent", "127.0.0.1", "192.0.2.4"), testNode("refused", "agent", "192.0.2.5"), testNode("good", "agent", "192.0.2.6"))
	client.PrependReactor("patch", "endpointslices", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.(clienttesting.PatchAction).GetName() != "kube-dns-refused-ipv4" {
			return false, nil, nil
		}
		return true, nil, apierrors.NewInvalid(schema.GroupKind{Kind: "EndpointSlice"}, "kube-dns-refused-ipv4", nil)
	})
	publish(t, p)
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1", "kube-dns-late-ipv4": "192.0.2.4", "kube-dns-good-ipv4": "192.0.2.6"})
}

// Before the cluster has a Node it has the Service, and no slice: what another server published stays, whoever its node
// is.
func TestPublishWithoutNode(t *testing.T) {
	client := published(t)
	eventually(t, client, nil)
}

// Slices follow the nodes' addresses, come back when deleted, and go with the address family, the label or the node.
func TestPublishFollows(t *testing.T) {
	client := published(t, testNode("one", "server", "192.0.2.1"))
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1"})

	nodes := client.CoreV1().Nodes()
	two, err := nodes.Create(t.Context(), testNode("two", "agent", "192.0.2.2", "2001:db8::2"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1", "kube-dns-two-ipv4": "192.0.2.2", "kube-dns-two-ipv6": "2001:db8::2"})

	two.Status.Addresses = two.Status.Addresses[:1]
	two.Status.Addresses[0].Address = "192.0.2.22"
	if two, err = nodes.Update(t.Context(), two, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1", "kube-dns-two-ipv4": "192.0.2.22"})

	if err := client.DiscoveryV1().EndpointSlices(namespace).Delete(t.Context(), "kube-dns-two-ipv4", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1", "kube-dns-two-ipv4": "192.0.2.22"})

	delete(two.Labels, names.RoleLabel)
	if _, err = nodes.Update(t.Context(), two, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, client, map[string]string{"kube-dns-one-ipv4": "192.0.2.1"})
}

// A slice that is right is not written again, whatever happens to the others.
func TestPublishWritesOnce(t *testing.T) {
	client, p := newTestPublisher(t, testNode("one", "server", "192.0.2.1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	defer p.watch(ctx)()
	if !cache.WaitFor(ctx, "", p.known...) {
		t.Fatal("not read")
	}
	publish := func(nodes int) {
		t.Helper()
		waitFor(t, func() bool { return len(p.wanted()) == nodes })
		if service, slices := p.publish(t.Context()); service != nil || slices != nil {
			t.Fatal(service, slices)
		}
		waitFor(t, func() bool { return !slices.ContainsFunc(p.wanted(), func(e endpoint) bool { return !p.upToDate(e) }) })
	}
	publish(1)
	publish(1)
	if _, err := client.CoreV1().Nodes().Create(t.Context(), testNode("two", "agent", "192.0.2.9"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	publish(2)
	for _, slice := range []string{"kube-dns-one-ipv4", "kube-dns-two-ipv4"} {
		if n := countWrites(client, slice); n != 1 {
			t.Errorf("%s was written %d times", slice, n)
		}
	}
}

func countWrites(client *fake.Clientset, slice string) (n int) {
	for _, a := range client.Actions() {
		if p, ok := a.(interface{ GetName() string }); ok && a.GetVerb() == "patch" && p.GetName() == slice {
			n++
		}
	}
	return n
}

// eventually waits for the slices, "name: address", and nothing else.
func eventually(t *testing.T, client *fake.Clientset, want map[string]string) {
	t.Helper()
	var got map[string]string
	waitFor(t, func() bool {
		list, err := client.DiscoveryV1().EndpointSlices(namespace).List(context.Background(), metav1.ListOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		got = map[string]string{}
		for _, s := range list.Items {
			got[s.Name] = s.Endpoints[0].Addresses[0]
		}
		if len(got) != len(want) {
			return false
		}
		for name, ip := range want {
			if got[name] != ip {
				return false
			}
		}
		return true
	}, func() { t.Fatalf("slices %v, want %v", got, want) })
}

// waitFor polls; what is called when it takes too long does not return.
func waitFor(t *testing.T, done func() bool, failed ...func()) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().Before(deadline) {
			continue
		}
		for _, f := range failed {
			f()
		}
		t.Fatal("it does not happen")
	}
}
