package approver

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/record"

	"kubelith.io/kubelith/base/names"
)

const providedIP = "alpha.kubernetes.io/provided-node-ip"

// claiming is a Node whose kubelet leaves its addresses to a cloud provider.
func claiming(name, internal, external string) *corev1.Node {
	n := node(name, append(strings.Split(internal, ","), name)...)
	n.Annotations = map[string]string{providedIP: internal, names.ExternalIPAnnotation: external}
	n.Spec.Taints = []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "node.cloudprovider.kubernetes.io/uninitialized", Value: "true", Effect: "NoSchedule"}}
	return n
}

func externally(n *corev1.Node, ip string) *corev1.Node {
	n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: ip})
	return n
}

func aged(n *corev1.Node, age time.Duration) *corev1.Node {
	n.CreationTimestamp = metav1.NewTime(made.Add(-age))
	return n
}

// TestAddresses: a Node gets the external addresses that it claims, unless another Node has them or an administrator
// has to agree.
func TestAddresses(t *testing.T) {
	other := node("b", "192.0.2.13", "b")
	for name, tc := range map[string]struct {
		node    *corev1.Node
		others  []*corev1.Node
		want    string // the addresses afterwards
		refused string // in the Event
	}{
		"new":             {claiming("a", "192.0.2.11", "203.0.113.1"), nil, "InternalIP=192.0.2.11 ExternalIP=203.0.113.1 Hostname=a", ""},
		"both families":   {claiming("a", "192.0.2.11,2001:db8::11", "203.0.113.1,2001:db8:1::1"), nil, "InternalIP=192.0.2.11 InternalIP=2001:db8::11 ExternalIP=203.0.113.1 ExternalIP=2001:db8:1::1 Hostname=a", ""},
		"of an interface": {claiming("a", "192.0.2.11", "192.0.2.11"), nil, "InternalIP=192.0.2.11 ExternalIP=192.0.2.11 Hostname=a", ""},
		"nonsense":        {claiming("a", "192.0.2.11", "x"), nil, "InternalIP=192.0.2.11 Hostname=a", ""},
		"no kubelet of this kind": {func() *corev1.Node {
			n := claiming("a", "192.0.2.11", "203.0.113.1")
			delete(n.Annotations, providedIP)
			return n
		}(), nil, "InternalIP=192.0.2.11 Hostname=a", ""},
		"another internal address": {func() *corev1.Node {
			n := externally(claiming("a", "192.0.2.11", "203.0.113.1"), "203.0.113.1")
			n.Annotations[providedIP] = "192.0.2.99"
			return n
		}(), nil, "InternalIP=192.0.2.99 ExternalIP=203.0.113.1 Hostname=a", ""},
		"another external address": {externally(claiming("a", "192.0.2.11", "203.0.113.2"), "203.0.113.1"), nil, "InternalIP=192.0.2.11 ExternalIP=203.0.113.2 Hostname=a", ""},
		"late":                     {aged(claiming("a", "192.0.2.11", "203.0.113.1"), time.Hour), nil, "InternalIP=192.0.2.11 Hostname=a", "203.0.113.1 does not become an ExternalIP: the node has existed for more than 10m0s: if it is right, run kubectl label node a kubelith.io/external-ip=allowed"},
		"late, but it has it":      {aged(externally(claiming("a", "192.0.2.11", "203.0.113.1"), "203.0.113.1"), time.Hour), nil, "InternalIP=192.0.2.11 ExternalIP=203.0.113.1 Hostname=a", ""},
		"late, another one":        {aged(externally(claiming("a", "192.0.2.11", "203.0.113.2"), "203.0.113.1"), time.Hour), nil, "InternalIP=192.0.2.11 Hostname=a", "203.0.113.2 does not"},
		"allowed": {func() *corev1.Node {
			n := aged(claiming("a", "192.0.2.11", "203.0.113.1"), time.Hour)
			n.Labels = map[string]string{"kubelith.io/external-ip": "allowed"}
			return n
		}(), nil, "InternalIP=192.0.2.11 ExternalIP=203.0.113.1 Hostname=a", ""},
		"a server, late":    {aged(claiming("server-1", "192.0.2.11", "192.0.2.1"), time.Hour), nil, "InternalIP=192.0.2.11 ExternalIP=192.0.2.1 Hostname=server-1", ""},
		"another node's":    {claiming("a", "192.0.2.11", "192.0.2.13"), []*corev1.Node{other}, "InternalIP=192.0.2.11 Hostname=a", "192.0.2.13 does not become an ExternalIP: node b has it"},
		"a younger node's":  {aged(externally(claiming("a", "192.0.2.11", "192.0.2.13"), "192.0.2.13"), time.Hour), []*corev1.Node{other}, "InternalIP=192.0.2.11 ExternalIP=192.0.2.13 Hostname=a", ""},
		"an older node's":   {externally(claiming("c", "192.0.2.11", "192.0.2.13"), "192.0.2.13"), []*corev1.Node{aged(node("b", "192.0.2.13"), time.Hour)}, "InternalIP=192.0.2.11 Hostname=c", "node b has it"},
		"the API's":         {claiming("a", "192.0.2.11", "192.0.2.1"), nil, "InternalIP=192.0.2.11 Hostname=a", "192.0.2.1 is an address of the API server"},
		"a Service's":       {claiming("a", "192.0.2.11", "10.43.0.9"), nil, "InternalIP=192.0.2.11 Hostname=a", "10.43.0.9 is in 10.43.0.0/16"},
		"loopback":          {claiming("a", "192.0.2.11", "127.0.0.1"), nil, "InternalIP=192.0.2.11 Hostname=a", "127.0.0.1 is not an address at which"},
		"one of two wrong":  {claiming("a", "192.0.2.11", "203.0.113.1,fd42::2"), nil, "InternalIP=192.0.2.11 ExternalIP=203.0.113.1 Hostname=a", "fd42::2 is in fd42::/56"},
		"claims no address": {node("a", "192.0.2.11", "a"), nil, "InternalIP=192.0.2.11 Hostname=a", ""},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []runtime.Object{tc.node}
			for _, n := range tc.others {
				objects = append(objects, n)
			}
			c := newCluster(t, objects...)
			events := record.NewFakeRecorder(10)
			c.events = events
			before := tc.node.DeepCopy()
			for range 2 { // the second time nothing is new
				c.address(t.Context())
			}
			after, err := c.client.CoreV1().Nodes().Get(t.Context(), tc.node.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range after.Status.Addresses {
				got = append(got, string(a.Type)+"="+a.Address)
			}
			if text := strings.Join(got, " "); text != tc.want {
				t.Errorf("addresses %s, want %s", text, tc.want)
			}
			if managed := after.Annotations[providedIP] != "" && after.Annotations[names.ExternalIPAnnotation] != ""; managed {
				if len(after.Spec.Taints) != 1 || after.Spec.Taints[0].Key != "a" {
					t.Errorf("taints %v", after.Spec.Taints)
				}
				if !c.unaddressed(before) {
					t.Error("nothing was to be done")
				}
			} else if !slices.Equal(after.Spec.Taints, before.Spec.Taints) || c.unaddressed(before) {
				t.Error("a node that keeps its own addresses is changed")
			}
			if c.unaddressed(after) != (tc.refused != "") {
				t.Errorf("still to do: %v", c.unaddressed(after))
			}
			switch close(events.Events); {
			case tc.refused == "" && len(events.Events) > 0, tc.refused != "" && len(events.Events) != 1:
				t.Errorf("%d Events", len(events.Events))
			case tc.refused != "":
				if e := <-events.Events; !strings.HasPrefix(e, "Warning ExternalIPRefused ") || !strings.Contains(e, tc.refused) {
					t.Errorf("Event %q, want %q", e, tc.refused)
				}
			}
		})
	}
}
