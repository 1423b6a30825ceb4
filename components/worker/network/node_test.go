package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

// obj is a Node of Kubelith; its parts are told apart by their form: CIDRs of pods, addresses.
func obj(name string, parts ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.RoleLabel: "agent"}}}
	for _, p := range parts {
		if strings.Contains(p, "/") {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, p)
			continue
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: p})
	}
	return n
}

func prefixes(texts ...string) (out []netip.Prefix) {
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// drawn is "name 10.42.1.0/24@192.0.2.2 fd42::/64@2001:db8::2" of each, without the families that are off.
func drawn(nodes []node) string {
	var out []string
	for _, n := range nodes {
		text := n.name
		for _, h := range []half{n.v4, n.v6} {
			if h.on() {
				text += fmt.Sprintf(" %s@%s", h.pods, h.address)
			}
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

func TestDescribe(t *testing.T) {
	odd := obj("odd", "10.42.1.7/24", "10.42.9.0/24", "x/y", "fd42:0:0:1::/64", "::ffff:192.0.2.3", "fe80::1%eth0", "192.0.2.9", "2001:db8::3")
	odd.Status.Addresses = append([]corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "192.0.2.8"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.1"}},
		odd.Status.Addresses...)
	if got, want := drawn([]node{describe(odd)}), "odd 10.42.1.0/24@192.0.2.3 fd42:0:0:1::/64@2001:db8::3"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	old := obj("old", "192.0.2.2")
	old.Spec.PodCIDR = "10.42.2.0/24"
	if got, want := drawn([]node{describe(old)}), "old 10.42.2.0/24@192.0.2.2"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if d := describe(obj("bare")); d.on() || !d.member {
		t.Errorf("a Node without addresses: %+v", d)
	}
	// A heartbeat changes nothing that matters; an address does.
	a, b := obj("n", "10.42.1.0/24", "192.0.2.2"), obj("n", "10.42.1.0/24", "192.0.2.2")
	b.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(time.Unix(1, 0))}}
	b.Status.Images = []corev1.ContainerImage{{Names: []string{"x"}}}
	if describe(a) != describe(b) {
		t.Error("a heartbeat counts as a change")
	}
	if b.Status.Addresses[0].Address = "192.0.2.3"; describe(a) == describe(b) {
		t.Error("another address does not count as a change")
	}
	if trimmed, err := trim(odd); err != nil || describe(trimmed.(*corev1.Node)) != describe(odd) {
		t.Errorf("the informer keeps too little: %+v", trimmed)
	}
}

func TestPeers(t *testing.T) {
	cluster := prefixes("10.42.0.0/16", "fd42::/56")
	own4 := describe(obj("own", "10.42.0.0/24", "192.0.2.1"))
	own6 := describe(obj("own", "fd42::/64", "2001:db8::1"))
	dual := describe(obj("own", "10.42.0.0/24", "192.0.2.1", "fd42::/64", "2001:db8::1"))
	age := func(n *corev1.Node, seconds int64) *corev1.Node {
		n.CreationTimestamp = metav1.NewTime(time.Unix(seconds, 0))
		return n
	}
	hollow := obj("hollow", "10.42.1.0/24", "192.0.2.2")
	hollow.Labels = nil
	for name, c := range map[string]struct {
		own     node
		nodes   []*corev1.Node
		want    string
		refused map[string]string // part of the reason, by name
	}{
		"alone":          {own4, []*corev1.Node{obj("own", "10.42.0.0/24", "192.0.2.1")}, "", nil},
		"two":            {own4, []*corev1.Node{obj("b", "10.42.1.0/24", "192.0.2.2"), obj("own")}, "b 10.42.1.0/24@192.0.2.2", nil},
		"not yet":        {own4, []*corev1.Node{obj("b", "192.0.2.2"), obj("c", "10.42.1.0/24")}, "", nil},
		"not ours":       {own4, []*corev1.Node{hollow}, "", nil},
		"dual, own IPv4": {own4, []*corev1.Node{obj("b", "10.42.1.0/24", "fd42:0:0:1::/64", "192.0.2.2", "2001:db8::2")}, "b 10.42.1.0/24@192.0.2.2", nil},
		"IPv6":           {own6, []*corev1.Node{obj("b", "fd42:0:0:1::/64", "2001:db8::2")}, "b fd42:0:0:1::/64@2001:db8::2", nil},
		"dual": {dual, []*corev1.Node{obj("b", "10.42.1.0/24", "fd42:0:0:1::/64", "192.0.2.2", "2001:db8::2"), obj("c", "10.42.2.0/24", "fd42:0:0:2::/64", "192.0.2.3")},
			"b 10.42.1.0/24@192.0.2.2 fd42:0:0:1::/64@2001:db8::2; c 10.42.2.0/24@192.0.2.3", nil},
		"all addresses of the world": {own4, []*corev1.Node{obj("b", "0.0.0.0/0", "192.0.2.2")}, "", map[string]string{"b": "0.0.0.0/0 is not part of the cluster's"}},
		"the whole cluster":          {own4, []*corev1.Node{obj("b", "10.42.0.0/16", "192.0.2.2")}, "", map[string]string{"b": "another node's"}},
		"another network":            {own4, []*corev1.Node{obj("b", "10.43.1.0/24", "192.0.2.2")}, "", map[string]string{"b": "not part"}},
		"our pods":                   {own4, []*corev1.Node{obj("b", "10.42.0.128/25", "192.0.2.2")}, "", map[string]string{"b": "another node's"}},
		"another's pods": {own4, []*corev1.Node{age(obj("a", "10.42.1.0/24", "192.0.2.2"), 9), age(obj("b", "10.42.1.0/24", "192.0.2.3"), 8)},
			"b 10.42.1.0/24@192.0.2.3", map[string]string{"a": "another node's"}},
		"our address":  {own4, []*corev1.Node{obj("b", "10.42.1.0/24", "192.0.2.1")}, "", map[string]string{"b": "this node's"}},
		"loopback":     {own4, []*corev1.Node{obj("b", "10.42.1.0/24", "127.0.0.1")}, "", map[string]string{"b": "cannot be reached"}},
		"one half bad": {dual, []*corev1.Node{obj("b", "10.42.1.0/24", "fd43::/64", "192.0.2.2", "2001:db8::2")}, "b 10.42.1.0/24@192.0.2.2", map[string]string{"b": "fd43::/64"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, refused := peers(c.nodes, c.own, cluster)
			if drawn(got) != c.want {
				t.Errorf("got  %s\nwant %s", drawn(got), c.want)
			}
			if len(refused) != len(c.refused) {
				t.Errorf("refused %q", refused)
			}
			for name, part := range c.refused {
				if !strings.Contains(refused[name], part) {
					t.Errorf("%s is refused with %q, want %q", name, refused[name], part)
				}
			}
		})
	}
}

// Every node must know the MAC addresses of the others from their names alone, in every release.
func TestVTEPMAC(t *testing.T) {
	seen := map[string]string{}
	for i := range 1000 {
		for _, f := range []macFamily{ipv4, ipv6} {
			name := fmt.Sprintf("node-%d", i)
			mac := vtepMAC(name, f)
			if mac[0]&1 != 0 || mac[0]&2 == 0 || len(mac) != 6 {
				t.Fatalf("%s is not a local unicast address", mac)
			}
			if other, twice := seen[mac.String()]; twice {
				t.Fatalf("%s and %s share %s", name, other, mac)
			}
			seen[mac.String()] = name
		}
	}
	got := []string{vtepMAC("node-1", ipv4).String(), vtepMAC("node-1", ipv6).String()}
	if want := []string{"a2:cd:a7:85:a7:19", "0e:9a:02:d4:77:9e"}; !slices.Equal(got, want) {
		t.Errorf("of node-1: %v, want %v", got, want)
	}
}
