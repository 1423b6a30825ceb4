package kubelet

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestServingRequest: the names and addresses of the Node, each once and in a stable order, as upstream requests them.
func TestServingRequest(t *testing.T) {
	for name, tc := range map[string]struct {
		addresses []corev1.NodeAddress
		want      string
	}{
		"none":            {nil, ""},
		"only a name":     {[]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "n"}}, ""},
		"usual":           {[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeHostName, Address: "n"}}, "[n] [192.0.2.7]"},
		"an address name": {[]corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeHostName, Address: "192.0.2.7"}}, "[] [192.0.2.7]"},
		"all kinds": {[]corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "2001:db8::7"}, {Type: corev1.NodeInternalIP, Address: "192.0.2.7"}, {Type: corev1.NodeExternalIP, Address: "192.0.2.1"},
			{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalDNS, Address: "n"}, {Type: corev1.NodeExternalDNS, Address: "a.example"}, {Type: "Other", Address: "192.0.2.9"},
		}, "[a.example n] [192.0.2.1 192.0.2.7 2001:db8::7]"},
	} {
		index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
		if err := index.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: tc.addresses}}); err != nil {
			t.Fatal(err)
		}
		got := ""
		if r := servingRequest("n", corelisters.NewNodeLister(index)); r != nil {
			got = fmt.Sprint(r.DNSNames, r.IPAddresses)
			if r.Subject.String() != "CN=system:node:n,O=system:nodes" {
				t.Errorf("%s: %s", name, r.Subject)
			}
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if r := servingRequest("n", corelisters.NewNodeLister(cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil))); r != nil {
		t.Errorf("without a Node: %v", r)
	}
}
