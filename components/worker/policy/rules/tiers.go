package rules

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// rule is a rule of a policy.
type rule struct {
	policy string // "NetworkPolicy NAMESPACE/NAME"
	name   string // "ingress rule 1"
	action Verdict

	everybody bool
	pods      []podSelector
	addresses addresses
	nodes     bool // the addresses are nodes'

	allPorts bool
	ports    []ports
	named    []namedPort // of the pod to which the connection goes
}

// podSelector selects pods. Without a selector of namespaces it is those of one.
type podSelector struct {
	namespace  string
	namespaces labels.Selector // nil: namespace
	pods       labels.Selector
}

func (s *podSelector) matches(p *profile) bool {
	if s.namespaces == nil {
		return s.namespace == p.namespace && s.pods.Matches(p.labels)
	}
	return s.namespaces.Matches(p.namespaceLabels) && s.pods.Matches(p.labels)
}

type namedPort struct {
	name     string
	protocol corev1.Protocol
}

// matches reports whether a rule is about a peer: nil is no pod; in reports whether its address is among the rule's.
func (r *rule) matches(peer *profile, in bool) bool {
	return r.everybody || in || peer != nil && slices.ContainsFunc(r.pods, func(s podSelector) bool { return s.matches(peer) })
}

// portsOf returns the rule's ports; named ones are those of target.
func (r *rule) portsOf(target *profile) []ports {
	if len(r.named) == 0 {
		return r.ports
	}
	all := slices.Clone(r.ports)
	for _, n := range r.named {
		for _, number := range target.named(n.name, n.protocol) {
			all = append(all, ports{slices.Index(protocols, n.protocol), number, number})
		}
	}
	return all
}

// tiers are the rules for a pod in one direction.
type tiers struct {
	admin, baseline []*rule // the first that matches decides
	policies        []*rule // one that matches suffices
	isolated        bool    // by a NetworkPolicy: what none allows is denied
	isolating       []string
	services        bool     // connections may go to endpoints of the nodes' Services
	subject         *profile // to which named ports of an ingress rule belong; nil for egress
}

// view is a way in which rules see a peer.
type view struct {
	profile *profile         // nil: no pod
	has     func(*rule) bool // whether the peer's address is among those of a rule
	service *Service         // its ports only, which are its target to the connection; nil: all ports
	hidden  *Service         // its target is not the node's to rules about nodes: it would be a pod's
}

// sees reports whether a rule matches.
func (v view) sees(r *rule) bool {
	return !(r.nodes && v.service != nil) && r.matches(v.profile, v.has(r))
}

// ports returns the ports of a rule that matches.
func (v view) ports(t *tiers, r *rule) (all bool, some []ports) {
	all, some = r.allPorts, r.portsOf(t.target(v.profile))
	if v.service == nil {
		return all, some
	}
	var targets []ports
	for _, p := range v.service.Ports {
		i := slices.Index(protocols, p.Protocol)
		if all || slices.ContainsFunc(some, func(of ports) bool { return of.has(i, p.Port) }) {
			targets = append(targets, ports{i, v.service.Target, v.service.Target})
		}
	}
	return false, targets
}

// decide returns the verdicts about a peer, whom a rule may match in any of the views.
func (t *tiers) decide(views ...view) *Decision {
	d := undecided()
	apply := func(rules []*rule) {
		for _, r := range rules {
			for _, v := range views {
				if !v.sees(r) {
					continue
				}
				before := *d
				all, some := v.ports(t, r)
				d.decide(all, some, r.action)
				if r.nodes && v.hidden != nil {
					d.keep(v.hidden, &before)
				}
			}
		}
	}
	apply(t.admin)
	d.replace(passed, open)
	if t.isolated {
		apply(t.policies)
		d.replace(open, Deny)
		return d
	}
	apply(t.baseline)
	d.replace(passed, open)
	d.replace(open, Allow)
	return d
}

// target returns the pod to which a connection with peer goes.
func (t *tiers) target(peer *profile) *profile {
	if t.subject != nil {
		return t.subject
	}
	return peer
}

// all returns the rules of all tiers.
func (t *tiers) all() []*rule { return slices.Concat(t.admin, t.policies, t.baseline) }

// policy is a NetworkPolicy as rules.
type policy struct {
	number     int // another one for each content
	spec       *networkingv1.NetworkPolicySpec
	name       string
	namespace  string
	selector   labels.Selector
	directions [2]bool
	rules      [2][]*rule
}

// newPolicy translates a NetworkPolicy. What cannot be understood allows nothing, and is returned as an error.
func newPolicy(p *networkingv1.NetworkPolicy) (*policy, []error) {
	var errs []error
	fail := func(err error) { errs = append(errs, fmt.Errorf("NetworkPolicy %s/%s: %w", p.Namespace, p.Name, err)) }
	out := &policy{spec: &p.Spec, namespace: p.Namespace, name: p.Name}
	selector, err := metav1.LabelSelectorAsSelector(&p.Spec.PodSelector)
	if err != nil {
		fail(err)
		selector = labels.Everything()
	}
	out.selector = selector
	types := p.Spec.PolicyTypes
	if len(types) == 0 { // as the API server's default
		types = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(p.Spec.Egress) > 0 {
			types = append(types, networkingv1.PolicyTypeEgress)
		}
	}
	out.directions[Ingress] = slices.Contains(types, networkingv1.PolicyTypeIngress)
	out.directions[Egress] = slices.Contains(types, networkingv1.PolicyTypeEgress)
	add := func(d Direction, i int, peers []networkingv1.NetworkPolicyPeer, on []networkingv1.NetworkPolicyPort) {
		r := &rule{policy: "NetworkPolicy " + p.Namespace + "/" + p.Name, name: fmt.Sprintf("%s rule %d", d, i+1), action: Allow}
		r.everybody, r.allPorts = len(peers) == 0, len(on) == 0
		var blocks []addresses
		for _, peer := range peers {
			if peer.IPBlock != nil {
				a, err := newAddresses(peer.IPBlock.CIDR, peer.IPBlock.Except)
				if err != nil {
					fail(err)
					continue
				}
				blocks = append(blocks, a)
				continue
			}
			s, err := newPodSelector(p.Namespace, peer.NamespaceSelector, peer.PodSelector)
			if err != nil {
				fail(err)
				continue
			}
			r.pods = append(r.pods, s)
		}
		r.addresses = union(blocks)
		for _, port := range on {
			r.addPort(port)
		}
		out.rules[d] = append(out.rules[d], r)
	}
	if out.directions[Ingress] {
		for i, r := range p.Spec.Ingress {
			add(Ingress, i, r.From, r.Ports)
		}
	}
	if out.directions[Egress] {
		for i, r := range p.Spec.Egress {
			add(Egress, i, r.To, r.Ports)
		}
	}
	return out, errs
}

func newPodSelector(namespace string, namespaces, pods *metav1.LabelSelector) (podSelector, error) {
	s := podSelector{namespace: namespace, pods: labels.Everything()}
	var err error
	if namespaces != nil {
		if s.namespaces, err = metav1.LabelSelectorAsSelector(namespaces); err != nil {
			return s, err
		}
	}
	if pods != nil {
		s.pods, err = metav1.LabelSelectorAsSelector(pods)
	}
	return s, err
}

func (r *rule) addPort(p networkingv1.NetworkPolicyPort) {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	i := slices.Index(protocols, protocol)
	switch {
	case i < 0:
	case p.Port == nil:
		r.ports = append(r.ports, ports{i, 0, 65535})
	case p.Port.StrVal != "":
		r.named = append(r.named, namedPort{p.Port.StrVal, protocol})
	default:
		first := uint16(p.Port.IntVal)
		last := first
		if p.EndPort != nil {
			last = max(first, uint16(*p.EndPort))
		}
		r.ports = append(r.ports, ports{i, first, last})
	}
}
