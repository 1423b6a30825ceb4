package dns

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// The Service and one slice per family are made, made again when deleted, and follow the node's addresses.
func TestObjects(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client := fake.NewClientset(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-1"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}},
	})
	o := newObjects(client, Options{NodeName: "one", ClusterDNS: ips("10.43.0.10", "fd43::a"), Port: 10053})
	defer o.watch(ctx)()
	eventually(t, o, func() bool { return len(o.nodeIPs()) == 1 })

	if err := o.publish(ctx, ips("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	service, err := client.CoreV1().Services(namespace).Get(ctx, serviceName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if service.Spec.ClusterIP != "10.43.0.10" || len(service.Spec.ClusterIPs) != 2 || len(service.Spec.Selector) != 0 ||
		*service.Spec.IPFamilyPolicy != corev1.IPFamilyPolicyRequireDualStack || service.Labels["k8s-app"] != "kube-dns" {
		t.Errorf("service: %+v", service)
	}
	slice := getSlice(ctx, t, o, client, discoveryv1.AddressTypeIPv4)
	if slice.Endpoints[0].Addresses[0] != "192.0.2.1" || *slice.Endpoints[0].NodeName != "one" || *slice.Ports[0].Port != 10053 ||
		slice.Labels[discoveryv1.LabelManagedBy] != managedBy || slice.OwnerReferences[0].UID != "uid-1" {
		t.Errorf("slice: %+v", slice)
	}
	six := sliceName("one", discoveryv1.AddressTypeIPv6)
	if _, err := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, six, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a slice without addresses: %v", err)
	}

	// Deleted by somebody: the watch reports it and it comes back.
	eventually(t, o, func() bool {
		_, err := o.slices.EndpointSlices(namespace).Get(slice.Name)
		return err == nil
	})
	drain(o)
	if err := client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-o.changed:
	case <-ctx.Done():
		t.Fatal("no signal after a deletion")
	}
	if err := o.publish(ctx, ips("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	getSlice(ctx, t, o, client, discoveryv1.AddressTypeIPv4)

	// Another address, also of the other family; then that family goes again.
	if err := o.publish(ctx, ips("192.0.2.2", "2001:db8::2")); err != nil {
		t.Fatal(err)
	}
	if got := getSlice(ctx, t, o, client, discoveryv1.AddressTypeIPv4).Endpoints[0].Addresses; got[0] != "192.0.2.2" || len(got) != 1 {
		t.Errorf("addresses %v", got)
	}
	eventually(t, o, func() bool {
		_, err := o.slices.EndpointSlices(namespace).Get(six)
		return err == nil
	})
	if err := o.publish(ctx, ips("192.0.2.2")); err != nil {
		t.Fatal(err)
	}
	if _, err := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, six, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the slice of a family without addresses stays: %v", err)
	}
}

func getSlice(ctx context.Context, t *testing.T, o *objects, client *fake.Clientset, family discoveryv1.AddressType) *discoveryv1.EndpointSlice {
	t.Helper()
	s, err := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, sliceName("one", family), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func eventually(t *testing.T, o *objects, done func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !done() {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
		select {
		case <-o.changed:
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func drain(o *objects) {
	select {
	case <-o.changed:
	default:
	}
}
