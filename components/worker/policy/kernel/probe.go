package kernel

import (
	"maps"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// Probe returns commands of nft that write both tables with each kind of rule, map and element that they can have: a
// kernel that accepts them can enforce every policy.
func Probe() string {
	// A Fake only collects what is written.
	table := newTable(knftables.NewFake(knftables.InetFamily, names.PolicyTable), true, true)
	ports := &Ports{nft: knftables.NewFake(knftables.BridgeFamily, names.PolicyTable)}
	tables, bridge := table.nft.NewTransaction(), ports.nft.NewTransaction()
	table.build(tables, probePolicies().All())
	bridge.Add(&knftables.Table{})
	ports.frame(bridge)
	for _, e := range portElementsOf("veth0", probeIPs) {
		bridge.Add(e)
	}
	return tables.String() + bridge.String()
}

var probeIPs = []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}

// probePolicies decide about a pod by selectors and blocks, with and without ports, and allow another everything, in
// both directions.
func probePolicies() *rules.Compiler {
	port := func(n int32) *intstr.IntOrString { return &intstr.IntOrString{IntVal: n} }
	last := int32(200)
	withPorts := []networkingv1.NetworkPolicyPort{{Port: port(80)}, {Port: port(100), EndPort: &last}}
	all := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}
	block := func(cidr string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}
	}
	some := []networkingv1.NetworkPolicyPeer{all, block("198.51.100.0/24"), block("2001:db8:1::/64")}
	labelled := networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"probe": "some"}}}
	others := []networkingv1.NetworkPolicyPeer{labelled, block("203.0.113.0/24"), block("2001:db8:2::/64")}
	specs := map[string]networkingv1.NetworkPolicySpec{
		"some": {
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: some, Ports: withPorts}, {From: others}},
			Egress:  []networkingv1.NetworkPolicyEgressRule{{To: some, Ports: withPorts}, {To: others}},
		},
		"everything": {Ingress: []networkingv1.NetworkPolicyIngressRule{{}}, Egress: []networkingv1.NetworkPolicyEgressRule{{}}},
	}
	c := rules.NewCompiler()
	c.SetNamespace("probe", nil)
	for i, name := range slices.Sorted(maps.Keys(specs)) {
		spec := specs[name]
		labels := map[string]string{"probe": name}
		spec.PodSelector.MatchLabels = labels
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
		c.SetPolicy(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "probe", Name: name}, Spec: spec})
		ips := []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), netip.AddrFrom16([16]byte{0x20, 0x01, 0x0d, 0xb8, 15: byte(i)})}
		c.SetPod(&rules.Pod{Namespace: "probe", Name: name, UID: types.UID(name), Labels: labels, IPs: ips})
		c.AddLocal(types.UID(name), ips)
	}
	return c
}
