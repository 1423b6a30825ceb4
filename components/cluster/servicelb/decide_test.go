package servicelb

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

// node is a Ready agent with the address 10.0.0.<number of its name>, and the kubelet on port 10250.
func node(name string, changes ...func(*corev1.Node)) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{names.RoleLabel: "agent"}, Annotations: map[string]string{names.HostPortsAnnotation: ""}}}
	n.UID = types.UID(name)
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	n.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: "10.0.0." + strings.TrimPrefix(name, "n")},
	}
	for _, f := range changes {
		f(n)
	}
	return n
}

func labelled(key, value string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Labels[key] = value }
}

// hostListens has a program of the host listen on ports, as the node reports it.
func hostListens(ports string) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Annotations[names.HostPortsAnnotation] = ports }
}

// silent is a node that has not reported the ports of its host.
func silent(n *corev1.Node) { n.Annotations = nil }

func alsoAt(kind corev1.NodeAddressType, ip string) func(*corev1.Node) {
	return func(n *corev1.Node) {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: ip})
	}
}

func ready(status corev1.ConditionStatus) func(*corev1.Node) {
	return func(n *corev1.Node) { n.Status.Conditions[0].Status = status }
}

// lb is a Service of type LoadBalancer with port 80/TCP, of the family IPv4, in the namespace ns. All have the same
// age.
func lb(name string, changes ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), CreationTimestamp: metav1.Unix(1e9, 0), Annotations: map[string]string{}}}
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80}}
	for _, f := range changes {
		f(s)
	}
	return s
}

func has(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) {
		for _, ip := range ips {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: ip})
		}
	}
}

func younger(s *corev1.Service) { s.CreationTimestamp = metav1.Unix(2e9, 0) }

func local(s *corev1.Service) {
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func ports(of ...hostport.Port) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.Ports = nil
		for _, p := range of {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Protocol: p.Protocol, Port: p.Number})
		}
	}
}

func tcp(number int32) hostport.Port {
	return hostport.Port{Protocol: corev1.ProtocolTCP, Number: number}
}
func udp(number int32) hostport.Port {
	return hostport.Port{Protocol: corev1.ProtocolUDP, Number: number}
}

func class(name string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &name }
}

// unproven is an address at which no node has been found.
const unproven = "1.1.1.1"

func TestDecide(t *testing.T) {
	two := []*corev1.Node{node("n1"), node("n2")}
	for _, c := range []struct {
		name      string
		nodes     []*corev1.Node
		services  []*corev1.Service
		endpoints map[string][]string // names of nodes, by Service
		want      []string            // "name addresses [reason: message]", in the order of decisions
	}{
		{"all nodes", two, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1, 10.0.0.2"}},
		{"addresses are sorted as numbers", []*corev1.Node{node("n10"), node("n9")}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.9, 10.0.0.10"}},
		{"no node yet", nil, []*corev1.Service{lb("a")}, nil, []string{"a "}},

		{"our class", two[:1], []*corev1.Service{lb("a", class(Class))}, nil, []string{"a 10.0.0.1"}},
		{"another class", two[:1], []*corev1.Service{lb("a", class("example.org/lb"))}, nil, nil},
		{"another type", two[:1], []*corev1.Service{lb("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })}, nil, nil},
		{"a Service that is being deleted", two[:1], []*corev1.Service{lb("a", func(s *corev1.Service) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} })}, nil, nil},

		{"a node of another program", []*corev1.Node{node("n1", func(n *corev1.Node) { n.Labels = nil }), node("n2")}, []*corev1.Service{lb("a")}, nil,
			[]string{"a 10.0.0.2"}},
		{"a node that is not ready", []*corev1.Node{node("n1", ready(corev1.ConditionFalse)), node("n2")}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.2"}},
		{"a node that starts again keeps its Services", []*corev1.Node{node("n1", ready(corev1.ConditionFalse)), node("n2")},
			[]*corev1.Service{lb("a", has("10.0.0.1"))}, nil, []string{"a 10.0.0.1, 10.0.0.2"}},
		{"a node whose state is unknown", []*corev1.Node{node("n1", ready(corev1.ConditionUnknown)), node("n2")},
			[]*corev1.Service{lb("a", has("10.0.0.1"))}, nil, []string{"a 10.0.0.2"}},
		{"a cordoned node stays", []*corev1.Node{node("n1", func(n *corev1.Node) {
			n.Spec.Unschedulable = true
			n.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}
		})}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1"}},
		{"excluded nodes", []*corev1.Node{
			node("n1", labelled(corev1.LabelNodeExcludeBalancers, "")), node("n2", labelled(corev1.LabelNodeExcludeBalancers, "true")),
			node("n3", labelled(corev1.LabelNodeExcludeBalancers, "maybe")), node("n4", labelled(corev1.LabelNodeExcludeBalancers, "false")),
		}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.4"}},
		{"nodes on their way out", []*corev1.Node{
			node("n1", func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }),
			node("n2", func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: autoscalerTaint}} }), node("n3"),
		}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.3"}},

		{"labelled nodes only", []*corev1.Node{node("n1"), node("n2", labelled(NodeLabel, "true")), node("n3", labelled(NodeLabel, "dmz"))},
			[]*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.2, 10.0.0.3"}},
		{"all but a node with the label false", []*corev1.Node{node("n1"), node("n2", labelled(NodeLabel, "false"))}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1"}},
		{"no node but with the label false", []*corev1.Node{node("n1", labelled(NodeLabel, "false"))}, []*corev1.Service{lb("a")}, nil,
			[]string{"a  NoAddress: all nodes have the label kubelith.io/servicelb=false"}},
		{"a pool", []*corev1.Node{node("n1"), node("n2", labelled(NodeLabel, "true")), node("n3", labelled(NodeLabel, "dmz"))},
			[]*corev1.Service{lb("a", func(s *corev1.Service) { s.Annotations[PoolAnnotation] = "dmz" })}, nil, []string{"a 10.0.0.3"}},
		{"a pool whose only node is not ready", []*corev1.Node{node("n1"), node("n3", labelled(NodeLabel, "dmz"), ready(corev1.ConditionUnknown))},
			[]*corev1.Service{lb("a"), lb("b", ports(tcp(81)), func(s *corev1.Service) { s.Annotations[PoolAnnotation] = "dmz" })}, nil, []string{"a ", "b "}},
		{"a pool that does not exist", two, []*corev1.Service{lb("a", func(s *corev1.Service) { s.Annotations[PoolAnnotation] = "dmz" })}, nil,
			[]string{"a  NoAddress: no node has the label kubelith.io/servicelb=dmz, which annotation kubelith.io/servicelb-pool requires"}},

		{"policy Local", two, []*corev1.Service{lb("a", local)}, map[string][]string{"a": {"n2", "elsewhere"}}, []string{"a 10.0.0.2"}},
		{"policy Local without endpoints", two, []*corev1.Service{lb("a", local, has("10.0.0.1"))}, nil, []string{"a "}},
		{"policy Cluster without endpoints", two, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1, 10.0.0.2"}},

		{"external addresses", []*corev1.Node{node("n1", alsoAt(corev1.NodeExternalIP, "192.0.2.1"), alsoAt(corev1.NodeExternalDNS, "n1.example.org"))},
			[]*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1, 192.0.2.1"}},
		{"families", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, "fd00::1")), node("n2")}, []*corev1.Service{
			lb("four"), lb("six", ports(tcp(81)), func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }),
			lb("two", ports(tcp(82)), func(s *corev1.Service) {
				s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
			}),
		}, nil, []string{"four 10.0.0.1, 10.0.0.2", "six fd00::1", "two 10.0.0.1, 10.0.0.2, fd00::1"}},
		{"a family that no node has", two, []*corev1.Service{lb("a", func(s *corev1.Service) { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} })}, nil,
			[]string{"a  NoAddress: no node has an address of the family IPv6"}},
		{"the requested address", two, []*corev1.Service{lb("a", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.0.0.2" })}, nil, []string{"a 10.0.0.2"}},
		{"an address that no node has", two, []*corev1.Service{lb("a", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.9.9.9" })}, nil,
			[]string{"a  NoAddress: no eligible node has the address 10.9.9.9 of spec.loadBalancerIP"}},

		{"the older one", two[:1], []*corev1.Service{lb("a", younger), lb("b")}, nil,
			[]string{"b 10.0.0.1", "a  PortConflict: port 80/TCP is taken by ns/b on n1"}},
		{"of the same age, the first by name", two, []*corev1.Service{lb("b"), lb("a")}, nil,
			[]string{"a 10.0.0.1, 10.0.0.2", "b  PortConflict: port 80/TCP is taken by ns/a on n1, n2"}},
		{"who has it already", two[:1], []*corev1.Service{lb("a"), lb("b", younger, has("10.0.0.1"))}, nil,
			[]string{"b 10.0.0.1", "a  PortConflict: port 80/TCP is taken by ns/b on n1"}},
		{"one port of two", two[:1], []*corev1.Service{lb("a"), lb("b", younger, ports(tcp(81), tcp(80)))}, nil,
			[]string{"a 10.0.0.1", "b  PortConflict: port 80/TCP is taken by ns/a on n1"}},
		{"a loser has nothing for which others would lose", two[:1], []*corev1.Service{lb("a"), lb("b", ports(tcp(80), tcp(81))), lb("c", ports(tcp(81)))}, nil,
			[]string{"a 10.0.0.1", "b  PortConflict: port 80/TCP is taken by ns/a on n1", "c 10.0.0.1"}},
		{"the same port of two protocols", two[:1], []*corev1.Service{lb("a"), lb("b", ports(udp(80)))}, nil, []string{"a 10.0.0.1", "b 10.0.0.1"}},
		{"the same port on other nodes", two, []*corev1.Service{lb("a", local), lb("b", local)}, map[string][]string{"a": {"n1"}, "b": {"n2"}},
			[]string{"a 10.0.0.1", "b 10.0.0.2"}},
		{"a Service that spreads does not push another out", two, []*corev1.Service{lb("a", local, has("10.0.0.1")), lb("b", younger, local, has("10.0.0.2"))},
			map[string][]string{"a": {"n1", "n2"}, "b": {"n2"}},
			[]string{"a  PortConflict: port 80/TCP is taken by ns/b on n2", "b 10.0.0.2"}},
		{"two that spread: one of them stays", two, []*corev1.Service{lb("a", local, has("10.0.0.1")), lb("b", younger, local, has("10.0.0.2"))},
			map[string][]string{"a": {"n1", "n2"}, "b": {"n1", "n2"}},
			[]string{"a  PortConflict: port 80/TCP is taken by ns/b on n2", "b 10.0.0.1, 10.0.0.2"}},
		{"many nodes", []*corev1.Node{node("n1"), node("n2"), node("n3"), node("n4"), node("n5")}, []*corev1.Service{lb("a"), lb("b")}, nil,
			[]string{"a 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.0.4, 10.0.0.5", "b  PortConflict: port 80/TCP is taken by ns/a on n1, n2, n3 and 2 more nodes"}},

		{"our own ports", two[:1], []*corev1.Service{lb("a", ports(tcp(80), tcp(10250), udp(8472), tcp(8472)))}, nil,
			[]string{"a  PortConflict: port 10250/TCP is taken by Kubelith itself on n1; port 8472/UDP is taken by Kubelith itself on n1"}},
		{"the API's port, on a server", []*corev1.Node{node("n1"), node("n2", labelled(names.RoleLabel, "server"))}, []*corev1.Service{lb("a", ports(tcp(6443)))}, nil,
			[]string{"a  PortConflict: port 6443/TCP is taken by Kubelith itself on n2"}},
		{"the API's port, on agents", two, []*corev1.Service{lb("a", ports(tcp(6443)))}, nil, []string{"a 10.0.0.1, 10.0.0.2"}},
		{"our own port, although the Service had it", two[:1], []*corev1.Service{lb("a", ports(tcp(10250)), has("10.0.0.1"))}, nil,
			[]string{"a  PortConflict: port 10250/TCP is taken by Kubelith itself on n1"}},
		{"a node port", two[:1], []*corev1.Service{lb("a", ports(tcp(30080))), nodePort("b", tcp(30080))}, nil,
			[]string{"a  PortConflict: port 30080/TCP is taken by the node port of ns/b on n1"}},
		{"a node port of another protocol", two[:1], []*corev1.Service{lb("a", ports(tcp(30080))), nodePort("b", udp(30080))}, nil, []string{"a 10.0.0.1"}},
		{"a node port that came later", two[:1], []*corev1.Service{lb("a", ports(tcp(30080)), has("10.0.0.1")), nodePort("b", tcp(30080))}, nil, []string{"a 10.0.0.1"}},
		{"its own node port", two[:1], []*corev1.Service{lb("a", ports(tcp(30080)), func(s *corev1.Service) { s.Spec.Ports[0].NodePort = 30080 })}, nil, []string{"a 10.0.0.1"}},
		{"a health check port", two[:1], []*corev1.Service{lb("a", ports(tcp(30090))), lb("b", func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 30090 })}, nil,
			[]string{"a  PortConflict: port 30090/TCP is taken by the node port of ns/b on n1", "b 10.0.0.1"}},

		{"the API's port, by its address", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, "192.0.2.6"))}, []*corev1.Service{lb("a", ports(tcp(6443)))}, nil,
			[]string{"a  PortConflict: port 6443/TCP is taken by Kubelith itself on n1"}},
		{"the API's address, which an agent reports", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, "192.0.2.6"))}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1"}},
		{"the address of another node", []*corev1.Node{node("n1"), node("n2", alsoAt(corev1.NodeInternalIP, "10.0.0.1"))}, []*corev1.Service{lb("a", local)},
			map[string][]string{"a": {"n2"}}, []string{"a 10.0.0.2"}},
		{"addresses of pods and Services", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, "10.43.0.1"), alsoAt(corev1.NodeInternalIP, "127.0.0.1"))}, []*corev1.Service{lb("a")}, nil,
			[]string{"a 10.0.0.1"}},
		{"an address at which its kubelet does not answer", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, unproven))}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1"}},
		{"no address but that", []*corev1.Node{node("n1", func(n *corev1.Node) { n.Status.Addresses = nil }, alsoAt(corev1.NodeInternalIP, unproven))},
			[]*corev1.Service{lb("a"), lb("b", ports(tcp(81)), func(s *corev1.Service) { s.Spec.LoadBalancerIP = unproven })}, nil, []string{"a ", "b "}},
		{"a Service that has it keeps it", []*corev1.Node{node("n1", alsoAt(corev1.NodeInternalIP, unproven))}, []*corev1.Service{lb("a", has(unproven))}, nil, []string{"a 1.1.1.1, 10.0.0.1"}},

		{"a port of the host", []*corev1.Node{node("n1", hostListens("22/TCP,80/TCP")), node("n2", hostListens("80/UDP"))}, []*corev1.Service{lb("a")}, nil,
			[]string{"a 10.0.0.2 HostPort: port 80/TCP is in use by a host process on n1"}},
		{"of all hosts", []*corev1.Node{node("n1", hostListens("22/TCP")), node("n2", hostListens("22/TCP"))}, []*corev1.Service{lb("a", ports(tcp(22), tcp(80)))}, nil,
			[]string{"a  HostPort: port 22/TCP is in use by a host process on n1, n2"}},
		{"of the host, although the Service had it", []*corev1.Node{node("n1", hostListens("80/TCP"))}, []*corev1.Service{lb("a", has("10.0.0.1"))}, nil,
			[]string{"a  HostPort: port 80/TCP is in use by a host process on n1"}},
		{"on which the Service's own pod listens", []*corev1.Node{node("n1", hostListens("80/TCP"))}, []*corev1.Service{lb("own")}, nil, []string{"own 10.0.0.1"}},
		{"a host that keeps a Service out leaves the port to another", []*corev1.Node{node("n1", hostListens("22/TCP"))},
			[]*corev1.Service{lb("a", ports(tcp(22), tcp(80))), lb("b", younger)}, nil,
			[]string{"a  HostPort: port 22/TCP is in use by a host process on n1", "b 10.0.0.1"}},
		{"of Kubelith itself, which listens too", []*corev1.Node{node("n1", labelled(names.RoleLabel, "server"), hostListens("6443/TCP,8472/UDP"))}, []*corev1.Service{lb("a", ports(tcp(6443)))}, nil,
			[]string{"a  PortConflict: port 6443/TCP is taken by Kubelith itself on n1"}},
		{"a host that has not reported", []*corev1.Node{node("n1", silent), node("n2")}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.2"}},
		{"no host has reported", []*corev1.Node{node("n1", silent)}, []*corev1.Service{lb("a")}, nil,
			[]string{"a  HostPort: waiting for the host ports of n1 (annotation kubelith.io/host-ports)"}},
		{"one that has not reported keeps what it has", []*corev1.Node{node("n1", silent)}, []*corev1.Service{lb("a", has("10.0.0.1"))}, nil, []string{"a 10.0.0.1"}},
		{"one that reports nonsense", []*corev1.Node{node("n1", hostListens("x,,99999/TCP,-1/TCP,80"))}, []*corev1.Service{lb("a")}, nil, []string{"a 10.0.0.1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := world{services: c.services, nodes: c.nodes,
				local:   func(s *corev1.Service) sets.Set[string] { return sets.New(c.endpoints[s.Name]...) },
				listens: func(s *corev1.Service, _ *corev1.Node, p hostport.Port) bool { return s.Name == "own" && p == tcp(80) },
				proven:  func(_ *corev1.Node, ip netip.Addr, held bool) bool { return held || ip.String() != unproven },
				opts: Options{NodePorts: []hostport.Port{udp(8472)}, ServerPorts: []hostport.Port{tcp(6443)},
					Addresses: nodeaddr.Parse([]string{"10.43.0.0/16"}, []string{"192.0.2.6"})},
			}
			check := func(when string, want []string) {
				t.Helper()
				if got := texts(decide(w)); !slices.Equal(got, want) {
					t.Errorf("%s:\ngot  %q\nwant %q", when, got, want)
				}
			}
			check("first", c.want)
			slices.Reverse(w.services)
			slices.Reverse(w.nodes)
			check("seen in another order", c.want)
			slices.Reverse(w.services)
			slices.Reverse(w.nodes)
		})
	}
}

func nodePort(name string, p hostport.Port) *corev1.Service {
	return lb(name, func(s *corev1.Service) {
		s.Spec.Type = corev1.ServiceTypeNodePort
		s.Spec.Ports = []corev1.ServicePort{{Protocol: p.Protocol, Port: 80, NodePort: p.Number}}
	})
}

func texts(all []decision) (out []string) {
	for _, d := range all {
		text := d.service.Name + " " + join(d.addresses)
		if d.reason != "" {
			text += fmt.Sprintf(" %s: %s", d.reason, d.message)
		}
		out = append(out, text)
	}
	return out
}

// TestDecisionsAreStable: when the decisions are written, the next look comes to the same ones. Where a Service loses
// what it had, one look more is allowed: others may get it then.
func TestDecisionsAreStable(t *testing.T) {
	endpoints := map[string][]string{"a": {"n1", "n2"}, "b": {"n1", "n2"}, "c": {"n2", "n3"}, "d": {"n3"}}
	w := world{
		nodes: []*corev1.Node{node("n1"), node("n2"), node("n3")},
		services: []*corev1.Service{
			lb("a", local, has("10.0.0.1")), lb("b", younger, local, has("10.0.0.2")), lb("c", local, has("10.0.0.3")), lb("d", younger, local),
			lb("e", ports(tcp(80), tcp(81))), lb("f", ports(tcp(81))),
		},
		local:  func(s *corev1.Service) sets.Set[string] { return sets.New(endpoints[s.Name]...) },
		proven: func(*corev1.Node, netip.Addr, bool) bool { return true },
	}
	var last []string
	for range 3 {
		decisions := decide(w)
		last = texts(decisions)
		for _, d := range decisions {
			d.service.Status.LoadBalancer.Ingress = nil
			for _, a := range d.addresses {
				has(a.String())(d.service)
			}
		}
	}
	if again := texts(decide(w)); !sets.New(again...).Equal(sets.New(last...)) {
		t.Errorf("got  %q\nthen %q", last, again)
	}
	for _, s := range w.services {
		if s.Name == "f" && len(s.Status.LoadBalancer.Ingress) != 3 {
			t.Errorf("f, which has port 81 for itself, has %v", s.Status.LoadBalancer.Ingress)
		}
	}
}
