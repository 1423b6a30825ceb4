package policyfuzz

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// state is a cluster: what its API lists.
type state struct {
	Namespaces []*corev1.Namespace
	// Slots are the pods at the first endpoints of the world, or nil; Others are pods without an endpoint.
	Slots  []*corev1.Pod
	Others []*corev1.Pod
	// Unknown are those pods of Slots that are connected, but have not been seen in the API yet: they are closed.
	Unknown  map[types.UID]bool
	Policies []*networkingv1.NetworkPolicy
	// ClusterPolicies are cluster-wide. Half of the states have none.
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy
}

func (s *state) clone() *state {
	out := &state{Unknown: map[types.UID]bool{}}
	for _, n := range s.Namespaces {
		out.Namespaces = append(out.Namespaces, n.DeepCopy())
	}
	for _, p := range s.Slots {
		out.Slots = append(out.Slots, p.DeepCopy())
	}
	for _, p := range s.Others {
		out.Others = append(out.Others, p.DeepCopy())
	}
	for uid := range s.Unknown {
		out.Unknown[uid] = true
	}
	for _, p := range s.Policies {
		out.Policies = append(out.Policies, p.DeepCopy())
	}
	for _, p := range s.ClusterPolicies {
		out.ClusterPolicies = append(out.ClusterPolicies, p.DeepCopy())
	}
	return out
}

// known returns all pods that the API lists. It includes an ended pod only if another pod has its address now:
// otherwise kube-network-policies takes the ended one for the owner.
func (s *state) known() (out []*corev1.Pod) {
	owned := map[string]bool{}
	for _, p := range s.Slots {
		if p != nil && !s.Unknown[p.UID] {
			out = append(out, p)
			owned[p.Status.PodIPs[0].IP] = true
		}
	}
	for _, p := range s.Others {
		if p.Spec.HostNetwork || owned[p.Status.PodIPs[0].IP] {
			out = append(out, p)
		}
	}
	return out
}

// The words of generated objects are few, so that much is selected.
var (
	namespaces = []string{"blue", "green", "kube-system", "red"}
	crowded    = append([]string{"blue", "blue", "blue", "green"}, namespaces...) // where pods and policies are: several share policies
	apps       = []string{"x", "y", "z"}
	roles      = []string{"m", "n"}
	teams      = []string{"a", "b"}
	portNames  = []string{"alt", "web"}
	protocols  = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}
)

// generator generates states.
type generator struct {
	*rand.Rand
	w       *world
	numbers int
}

func pick[T any](g *generator, of []T) T { return of[g.IntN(len(of))] }

// chance is true in one of n cases.
func (g *generator) chance(n int) bool { return g.IntN(n) == 0 }

func (g *generator) number() int {
	g.numbers++
	return g.numbers
}

// state generates one from nothing.
func (g *generator) state() *state {
	s := &state{Unknown: map[types.UID]bool{}}
	for _, name := range namespaces {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		g.labelNamespace(n)
		s.Namespaces = append(s.Namespaces, n)
	}
	for range locals + remotes {
		s.Slots = append(s.Slots, nil)
	}
	for i := range s.Slots {
		g.fill(s, i)
	}
	for range 1 + g.IntN(6) {
		s.Policies = append(s.Policies, g.policy())
	}
	g.clusterPolicies(s)
	return s
}

// clusterPolicies replaces them.
func (g *generator) clusterPolicies(s *state) {
	s.ClusterPolicies = nil
	if g.chance(2) {
		for range 1 + g.IntN(4) {
			s.ClusterPolicies = append(s.ClusterPolicies, g.clusterPolicy())
		}
	}
}

// next changes a state as a cluster changes in a moment.
func (g *generator) next(s *state) *state {
	if g.chance(20) {
		return g.state()
	}
	s = s.clone()
	clear(s.Unknown) // seen by now
	for range 1 + g.IntN(5) {
		switch g.IntN(14) {
		case 0:
			g.labelNamespace(pick(g, s.Namespaces))
		case 1, 2:
			if p := pick(g, s.Slots); p != nil {
				p.Labels = g.podLabels(p.Namespace)
			}
		case 3, 4:
			g.fill(s, g.IntN(len(s.Slots)))
		case 5:
			g.others(s)
		case 6, 7, 8:
			if len(s.Policies) < 6 {
				s.Policies = append(s.Policies, g.policy())
			}
		case 9:
			if len(s.Policies) > 1 {
				i := g.IntN(len(s.Policies))
				s.Policies = slices.Delete(s.Policies, i, i+1)
			}
		case 10:
			pick(g, s.Policies).Spec = g.policy().Spec
		case 11:
			g.edit(pick(g, s.Policies))
		case 12:
			g.clusterPolicies(s)
		case 13:
			if len(s.ClusterPolicies) > 0 {
				p := pick(g, s.ClusterPolicies)
				p.Spec = g.clusterPolicy().Spec
			}
		}
	}
	return s
}

// edit changes a part of a policy.
func (g *generator) edit(p *networkingv1.NetworkPolicy) {
	switch g.IntN(3) {
	case 0:
		p.Spec.PodSelector = *g.selector(g.podTerms())
	case 1:
		if len(p.Spec.Ingress) > 0 {
			p.Spec.Ingress = p.Spec.Ingress[1:]
		} else {
			p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()})
		}
	case 2:
		if len(p.Spec.Egress) > 0 {
			p.Spec.Egress = p.Spec.Egress[1:]
		} else {
			p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()})
		}
	}
}

func (g *generator) labelNamespace(n *corev1.Namespace) {
	n.Labels = map[string]string{corev1.LabelMetadataName: n.Name}
	if !g.chance(3) {
		n.Labels["team"] = pick(g, teams)
	}
}

func (g *generator) podLabels(namespace string) map[string]string {
	l := map[string]string{}
	if !g.chance(5) {
		l["app"] = pick(g, apps)
	}
	if g.chance(2) {
		l["role"] = pick(g, roles)
	}
	if namespace == "kube-system" && g.chance(2) {
		l["k8s-app"] = "kube-dns"
	}
	return l
}

// fill replaces the pod of a slot by a new one, or by none.
func (g *generator) fill(s *state, slot int) {
	s.Slots[slot] = nil
	if g.chance(8) {
		return
	}
	p := g.pod()
	p.Spec.NodeName = "this"
	if g.w.endpoints[slot].kind == remote {
		p.Spec.NodeName = "other"
	} else if g.chance(8) {
		s.Unknown[p.UID] = true
	}
	for _, ip := range g.w.endpoints[slot].ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	s.Slots[slot] = p
}

func (g *generator) pod() *corev1.Pod {
	i := g.number()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pick(g, crowded), Name: fmt.Sprintf("pod-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
	}}
	p.Labels = g.podLabels(p.Namespace)
	p.Status.Phase = corev1.PodRunning
	for i := range 1 + g.IntN(2) {
		c := corev1.Container{Name: fmt.Sprintf("c%d", i)}
		for _, name := range portNames {
			for _, protocol := range append([]corev1.Protocol{""}, protocols...) {
				if g.chance(4) {
					c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, Protocol: protocol, ContainerPort: int32(pick(g, ports))})
					break // a name is unique in a container
				}
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

// others generates pods whose addresses are not theirs: with the host's network, and ended.
func (g *generator) others(s *state) {
	s.Others = nil
	for range g.IntN(3) {
		p := g.pod()
		of := g.w.endpoints[len(g.w.endpoints)-1]
		p.Spec.NodeName, p.Spec.HostNetwork = "this", true
		if g.chance(2) {
			of = g.w.endpoints[g.IntN(len(s.Slots))]
			p.Spec.HostNetwork = false
			p.Status.Phase = pick(g, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
		}
		for _, ip := range of.ips {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.String()})
		}
		s.Others = append(s.Others, p)
	}
}

func (g *generator) policy() *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick(g, crowded), Name: fmt.Sprintf("policy-%d", g.number())}}
	p.Spec.PodSelector = *g.selector(g.podTerms())
	p.Spec.PolicyTypes = pick(g, [][]networkingv1.PolicyType{
		nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress}, {networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeEgress, networkingv1.PolicyTypeIngress},
	})
	for range g.IntN(4) {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{From: g.peers(), Ports: g.ports()})
	}
	for range g.IntN(4) {
		r := networkingv1.NetworkPolicyEgressRule{To: g.peers(), Ports: g.ports()}
		if g.chance(6) { // as all write it
			r.To = []networkingv1.NetworkPolicyPeer{{
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "kube-system"}},
				PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{"k8s-app": "kube-dns"}},
			}}
			r.Ports = []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To(intstr.FromInt32(53))}}
			if g.chance(2) {
				r.Ports = append(r.Ports, networkingv1.NetworkPolicyPort{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromString("dns-tcp"))})
			}
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

// terms are what a selector can ask for.
type terms map[string][]string

func (g *generator) podTerms() terms { return terms{"app": apps, "role": roles} }

func (g *generator) namespaceTerms() terms {
	return terms{"team": teams, corev1.LabelMetadataName: namespaces}
}

func (g *generator) selector(of terms) *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	keys := []string{"app", "role", "team", corev1.LabelMetadataName, "none"}
	for _, key := range keys {
		values := of[key]
		if key == "none" && g.chance(10) {
			values = []string{"v"}
		}
		if values == nil || g.chance(2) {
			continue
		}
		if g.chance(2) {
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]string{}
			}
			s.MatchLabels[key] = pick(g, values)
			continue
		}
		e := metav1.LabelSelectorRequirement{Key: key, Operator: pick(g, []metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		})}
		if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
			for range 1 + g.IntN(2) {
				e.Values = append(e.Values, pick(g, values))
			}
		}
		s.MatchExpressions = append(s.MatchExpressions, e)
	}
	return s
}

func (g *generator) peers() (out []networkingv1.NetworkPolicyPeer) {
	for range g.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch g.IntN(5) {
		case 0:
			p.PodSelector = g.selector(g.podTerms())
		case 1:
			p.NamespaceSelector = g.selector(g.namespaceTerms())
		case 2:
			p.PodSelector, p.NamespaceSelector = g.selector(g.podTerms()), g.selector(g.namespaceTerms())
		default:
			p.IPBlock = g.block()
		}
		out = append(out, p)
	}
	return out
}

// block generates one around an address of the world, with or without the host's bits.
func (g *generator) block() *networkingv1.IPBlock {
	f := g.IntN(2)
	around := func() netip.Addr {
		if g.chance(20) {
			return dnsVIPs[f]
		}
		return pick(g, g.w.endpoints).ips[f]
	}
	bits := [2][]int{{0, 1, 8, 15, 16, 23, 24, 25, 28, 30, 31, 32}, {0, 1, 15, 16, 32, 48, 63, 64, 112, 124, 127, 128}}[f]
	cidr := netip.PrefixFrom(around(), pick(g, bits))
	b := &networkingv1.IPBlock{CIDR: cidr.String()}
	if g.chance(2) {
		b.CIDR = cidr.Masked().String()
	}
	for range g.IntN(4) {
		ip := around()
		if except := pick(g, bits); except > cidr.Bits() && cidr.Contains(ip) {
			b.Except = append(b.Except, netip.PrefixFrom(ip, except).Masked().String())
		}
	}
	return b
}

func (g *generator) ports() (out []networkingv1.NetworkPolicyPort) {
	if g.chance(3) {
		return nil
	}
	for range 1 + g.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if !g.chance(4) {
			p.Protocol = ptr.To(pick(g, protocols))
		}
		switch g.IntN(6) {
		case 0: // all ports
		case 1, 2:
			p.Port = ptr.To(intstr.FromString(pick(g, append(portNames, "dns", "none"))))
		case 3:
			first := int32(pick(g, []int{1, 53, 79, 80, 81, 443, 8000, 8080, 8081}))
			last := int32(pick(g, []int{53, 80, 81, 443, 8080, 9000, 10053, 65535}))
			p.Port, p.EndPort = ptr.To(intstr.FromInt32(first)), ptr.To(max(first, last))
		default:
			p.Port = ptr.To(intstr.FromInt32(int32(pick(g, append([]int{53, dnsPort}, ports...)))))
		}
		out = append(out, p)
	}
	return out
}

// clusterPolicy generates one without nodes and domains.
func (g *generator) clusterPolicy() *policyv1alpha2.ClusterNetworkPolicy {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("cluster-%d", g.number())}}
	p.Spec.Tier = pick(g, []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier})
	p.Spec.Priority = int32(g.IntN(4))
	namespaces, pods := g.pods()
	p.Spec.Subject = policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: namespaces, Pods: pods}
	action := func() policyv1alpha2.ClusterNetworkPolicyRuleAction {
		return pick(g, []policyv1alpha2.ClusterNetworkPolicyRuleAction{
			policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass,
		})
	}
	for range g.IntN(3) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: action(), Protocols: g.clusterPorts()}
		for range 1 + g.IntN(2) {
			namespaces, pods := g.pods()
			r.From = append(r.From, policyv1alpha2.ClusterNetworkPolicyIngressPeer{Namespaces: namespaces, Pods: pods})
		}
		p.Spec.Ingress = append(p.Spec.Ingress, r)
	}
	for range g.IntN(3) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: action(), Protocols: g.clusterPorts()}
		for range 1 + g.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyEgressPeer
			if g.chance(2) {
				for range 1 + g.IntN(2) {
					peer.Networks = append(peer.Networks, policyv1alpha2.CIDR(g.block().CIDR))
				}
			} else {
				peer.Namespaces, peer.Pods = g.pods()
			}
			r.To = append(r.To, peer)
		}
		p.Spec.Egress = append(p.Spec.Egress, r)
	}
	return p
}

// pods selects namespaces, or pods.
func (g *generator) pods() (*metav1.LabelSelector, *policyv1alpha2.NamespacedPod) {
	if g.chance(2) {
		return g.selector(g.namespaceTerms()), nil
	}
	return nil, &policyv1alpha2.NamespacedPod{NamespaceSelector: *g.selector(g.namespaceTerms()), PodSelector: *g.selector(g.podTerms())}
}

func (g *generator) clusterPorts() (out []policyv1alpha2.ClusterNetworkPolicyProtocol) {
	if g.chance(2) {
		return nil
	}
	for range 1 + g.IntN(3) {
		var p policyv1alpha2.ClusterNetworkPolicyProtocol
		port := &policyv1alpha2.Port{Number: int32(pick(g, ports))}
		if g.chance(3) {
			first := pick(g, ports)
			port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: int32(first), End: int32(first + 1 + g.IntN(9000))}}
		}
		switch g.IntN(4) {
		case 0:
			p.TCP = &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}
		case 1:
			p.UDP = &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}
		case 2:
			p.SCTP = &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}
		case 3:
			p.DestinationNamedPort = pick(g, portNames)
		}
		out = append(out, p)
	}
	return out
}

// probes generates connections to try, to cluster DNS too if the oracle can decide about it (verdicts).
func (g *generator) probes(n int, toDNS bool) (out []probe) {
	for seen := map[probe]bool{}; len(out) < n; {
		p := probe{Protocol: pick(g, []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolUDP, corev1.ProtocolSCTP})}
		p.From, p.To, p.Family = g.IntN(len(g.w.endpoints)), g.IntN(len(g.w.endpoints)), g.IntN(2)
		if g.chance(2) {
			p.From = g.IntN(locals)
		}
		if g.chance(3) {
			p.To = g.IntN(locals)
		}
		p.Port = pick(g, ports)
		if p.Protocol != corev1.ProtocolSCTP {
			p.Kept = g.chance(3)
			last := len(g.w.endpoints) - 1
			switch g.IntN(10) {
			case 0:
				i := g.IntN(len(services))
				p.Service, p.To, p.Port = i+1, services[i].endpoint, services[i].port
			case 1:
				p.Service, p.To, p.Port = dns, last, dnsPort
			case 2:
				p.To, p.Port = last, dnsPort
			}
		}
		if !g.w.passes(p) || seen[p] || !toDNS && p.Port == dnsPort {
			continue
		}
		seen[p] = true
		out = append(out, p)
	}
	return out
}
