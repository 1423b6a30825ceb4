package nodeaddr

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

func node(name string, age int64, role string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(2e9-age, 0), Labels: map[string]string{names.RoleLabel: role}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "192.0.2.99"}}
	for _, a := range addresses {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a})
	}
	return n
}

// published has a node name the API, which counts for a server.
func published(n *corev1.Node, api string) *corev1.Node {
	n.Annotations = map[string]string{names.APINamesAnnotation: api}
	return n
}

func TestOf(t *testing.T) {
	rules := Parse([]string{"10.42.0.0/16", "10.43.0.0/16", "fd00:42::/56"}, []string{"192.0.2.1", "api.example.org", "198.51.100.1"})
	for _, tc := range []struct {
		name    string
		nodes   []*corev1.Node
		own     map[string][]string
		refused map[string][]string
	}{
		{"of both families", []*corev1.Node{node("a", 1, "agent", "192.0.2.2", "2001:db8::2")}, map[string][]string{"a": {"192.0.2.2", "2001:db8::2"}}, nil},
		{"a server's is the API's", []*corev1.Node{node("s", 1, names.RoleServer, "192.0.2.1")}, map[string][]string{"s": {"192.0.2.1"}}, nil},
		{"an agent's is not", []*corev1.Node{node("a", 9, "agent", "192.0.2.1", "198.51.100.1", "::ffff:192.0.2.1"), node("s", 1, names.RoleServer, "192.0.2.1")},
			map[string][]string{"s": {"192.0.2.1"}},
			map[string][]string{"a": {"192.0.2.1 is an address of the API server", "198.51.100.1 is an address of the API server", "192.0.2.1 is an address of the API server"}}},
		{"another server's is not", []*corev1.Node{node("a", 9, "agent", "192.0.2.8", "192.0.2.9"), published(node("s", 1, names.RoleServer, "192.0.2.7"), "192.0.2.8,api.two.example,192.0.2.9")},
			map[string][]string{"s": {"192.0.2.7"}},
			map[string][]string{"a": {"192.0.2.8 is an address of the API server", "192.0.2.9 is an address of the API server"}}},
		{"an agent has no API", []*corev1.Node{node("a", 1, "agent", "192.0.2.8"), published(node("b", 9, "agent", "192.0.2.7"), "192.0.2.8")},
			map[string][]string{"a": {"192.0.2.8"}, "b": {"192.0.2.7"}}, nil},
		{"the older node is right", []*corev1.Node{node("thief", 1, "agent", "192.0.2.3", "192.0.2.2"), node("a", 2, "agent", "192.0.2.2")},
			map[string][]string{"a": {"192.0.2.2"}, "thief": {"192.0.2.3"}}, map[string][]string{"thief": {"192.0.2.2 is the address of the node a"}}},
		{"of the same age, the first by name", []*corev1.Node{node("b", 1, "agent", "192.0.2.2"), node("a", 1, "agent", "192.0.2.2")},
			map[string][]string{"a": {"192.0.2.2"}}, map[string][]string{"b": {"192.0.2.2 is the address of the node a"}}},
		{"twice its own", []*corev1.Node{node("a", 1, "agent", "192.0.2.2", "192.0.2.2")}, map[string][]string{"a": {"192.0.2.2"}}, nil},
		{"unusable", []*corev1.Node{node("a", 1, "agent", "127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "224.0.0.1", "x", "fe80::1%eth0")}, nil,
			map[string][]string{"a": {
				"127.0.0.1 is not an address at which other machines can reach a node", "169.254.169.254 is not an address at which other machines can reach a node",
				"fe80::1 is not an address at which other machines can reach a node", "0.0.0.0 is not an address at which other machines can reach a node",
				"224.0.0.1 is not an address at which other machines can reach a node"}}},
		{"pods' and Services'", []*corev1.Node{node("a", 1, "agent", "10.42.0.5", "10.43.0.1", "fd00:42::1")}, nil, map[string][]string{"a": {
			"10.42.0.5 is in the network of pods or Services", "10.43.0.1 is in the network of pods or Services", "fd00:42::1 is in the network of pods or Services"}}},
	} {
		got := rules.Of(tc.nodes)
		for _, n := range tc.nodes {
			var own []string
			for _, ip := range got[n.Name].Own {
				own = append(own, ip.String())
			}
			if !reflect.DeepEqual(own, tc.own[n.Name]) || !reflect.DeepEqual(got[n.Name].Refused, tc.refused[n.Name]) {
				t.Errorf("%s: %s has %q, refused %q", tc.name, n.Name, own, got[n.Name].Refused)
			}
		}
	}
}
