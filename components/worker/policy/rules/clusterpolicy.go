package rules

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Node is what policies know of a node.
type Node struct {
	Name      string
	Labels    map[string]string
	Addresses []netip.Addr
}

// NodeOf reads a node. Those of its addresses that are names are left out.
func NodeOf(node *corev1.Node) *Node {
	n := &Node{Name: node.Name, Labels: node.Labels}
	for _, a := range node.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && !slices.Contains(n.Addresses, ip.Unmap()) {
			n.Addresses = append(n.Addresses, ip.Unmap())
		}
	}
	return n
}

// clusterPolicy is a ClusterNetworkPolicy as rules.
type clusterPolicy struct {
	number  int // another one for each content
	spec    *policyv1alpha2.ClusterNetworkPolicySpec
	name    string
	subject podSelector
	rules   [2][]*rule
	nodes   []nodeRule
}

// nodeRule is a rule about nodes, whose addresses are theirs.
type nodeRule struct {
	*rule
	selectors []labels.Selector
}

// compare is the order in which policies count. The API leaves that of equal priorities open: it is by name.
func (p *clusterPolicy) compare(o *clusterPolicy) int {
	return cmp.Or(cmp.Compare(p.spec.Priority, o.spec.Priority), cmp.Compare(p.name, o.name))
}

// errUnknown is about a field of a later version of the API.
var errUnknown = errors.New("a field of an unknown version")

// newClusterPolicy translates a ClusterNetworkPolicy. The errors are about rules that it cannot understand. They fail
// closed, as the API says: Accept matches nothing, the others deny everything. Without a subject it selects no pod.
func newClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) (*clusterPolicy, []error) {
	var errs []error
	title := "ClusterNetworkPolicy " + p.Name
	out := &clusterPolicy{spec: &p.Spec, name: p.Name}
	subject, err := podsOf(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods)
	if err != nil {
		out.subject = podSelector{pods: labels.Nothing()}
		return out, []error{fmt.Errorf("%s applies to no pod: subject: %w", title, err)}
	}
	out.subject = subject
	add := func(
		d Direction, i int, name string, action policyv1alpha2.ClusterNetworkPolicyRuleAction,
		peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer, on []policyv1alpha2.ClusterNetworkPolicyProtocol,
	) {
		r := &rule{policy: title, name: fmt.Sprintf("%s rule %d", d, i+1), allPorts: len(on) == 0}
		if name != "" {
			r.name += " (" + name + ")"
		}
		verdict, known := map[policyv1alpha2.ClusterNetworkPolicyRuleAction]Verdict{
			policyv1alpha2.ClusterNetworkPolicyRuleActionAccept: Allow,
			policyv1alpha2.ClusterNetworkPolicyRuleActionDeny:   Deny,
			policyv1alpha2.ClusterNetworkPolicyRuleActionPass:   passed,
		}[action]
		r.action = verdict
		nodes, err := r.addPeers(peers)
		for _, protocol := range on {
			err = errors.Join(err, r.addProtocol(protocol))
		}
		if !known {
			err = errors.Join(err, errUnknown)
		}
		switch {
		case err == nil:
			out.rules[d] = append(out.rules[d], r)
		case verdict == Allow:
			errs = append(errs, fmt.Errorf("%s, %s, accepts nothing: %w", title, r.name, err))
			return
		default:
			errs = append(errs, fmt.Errorf("%s, %s, denies everything: %w", title, r.name, err))
			out.rules[d] = append(out.rules[d], &rule{policy: title, name: r.name, action: Deny, everybody: true, allPorts: true})
			return
		}
		if len(nodes) > 0 {
			about := *r
			about.pods, about.addresses, about.nodes = nil, nil, true
			out.rules[d] = append(out.rules[d], &about)
			out.nodes = append(out.nodes, nodeRule{&about, nodes})
		}
	}
	for i, r := range p.Spec.Ingress {
		var from []policyv1alpha2.ClusterNetworkPolicyEgressPeer
		for _, peer := range r.From {
			from = append(from, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Namespaces: peer.Namespaces, Pods: peer.Pods})
		}
		add(Ingress, i, r.Name, r.Action, from, r.Protocols)
	}
	for i, r := range p.Spec.Egress {
		add(Egress, i, r.Name, r.Action, r.To, r.Protocols)
	}
	return out, errs
}

// podsOf selects the pods of namespaces, or some of them.
func podsOf(namespaces *metav1.LabelSelector, pods *policyv1alpha2.NamespacedPod) (podSelector, error) {
	switch {
	case namespaces != nil:
		return newPodSelector("", namespaces, nil)
	case pods != nil:
		return newPodSelector("", &pods.NamespaceSelector, &pods.PodSelector)
	}
	return podSelector{}, errUnknown
}

// addPeers adds a rule's peers except nodes, which it returns.
func (r *rule) addPeers(peers []policyv1alpha2.ClusterNetworkPolicyEgressPeer) (nodes []labels.Selector, _ error) {
	var blocks []addresses
	for _, peer := range peers {
		switch {
		case peer.Nodes != nil:
			s, err := metav1.LabelSelectorAsSelector(peer.Nodes)
			if err != nil {
				return nil, err
			}
			nodes = append(nodes, s)
		case len(peer.Networks) > 0:
			for _, cidr := range peer.Networks {
				block, err := newAddresses(string(cidr), nil)
				if err != nil {
					return nil, err
				}
				blocks = append(blocks, block)
			}
		case len(peer.DomainNames) > 0:
			return nil, errors.New("domainNames are not supported")
		default:
			s, err := podsOf(peer.Namespaces, peer.Pods)
			if err != nil {
				return nil, err
			}
			r.pods = append(r.pods, s)
		}
	}
	r.addresses = union(blocks)
	return nodes, nil
}

func (r *rule) addProtocol(p policyv1alpha2.ClusterNetworkPolicyProtocol) error {
	var protocol corev1.Protocol
	var port *policyv1alpha2.Port
	switch {
	case p.TCP != nil:
		protocol, port = corev1.ProtocolTCP, p.TCP.DestinationPort
	case p.UDP != nil:
		protocol, port = corev1.ProtocolUDP, p.UDP.DestinationPort
	case p.SCTP != nil:
		protocol, port = corev1.ProtocolSCTP, p.SCTP.DestinationPort
	case p.DestinationNamedPort != "":
		for _, protocol := range protocols { // the name says which
			r.named = append(r.named, namedPort{p.DestinationNamedPort, protocol})
		}
		return nil
	}
	i := slices.Index(protocols, protocol)
	switch {
	case port == nil:
		return errUnknown
	case port.Range != nil:
		r.ports = append(r.ports, ports{i, uint16(port.Range.Start), uint16(port.Range.End)})
	case port.Number != 0:
		r.ports = append(r.ports, ports{i, uint16(port.Number), uint16(port.Number)})
	default:
		return errUnknown
	}
	return nil
}

// setNodes gives the rules about nodes their addresses, and reports whether they have changed. A changed rule is
// another one: classes keep the old one.
func (p *clusterPolicy) setNodes(nodes map[string]*Node) (changed bool) {
	for i, about := range p.nodes {
		var all []addresses
		for _, n := range nodes {
			if slices.ContainsFunc(about.selectors, func(s labels.Selector) bool { return s.Matches(labels.Set(n.Labels)) }) {
				all = append(all, of(n.Addresses))
			}
		}
		now := union(all)
		if slices.Equal(now, about.addresses) {
			continue
		}
		changed = true
		other := *about.rule
		other.addresses = now
		for d := range p.rules {
			if j := slices.Index(p.rules[d], about.rule); j >= 0 {
				p.rules[d] = slices.Clone(p.rules[d])
				p.rules[d][j] = &other
			}
		}
		p.nodes[i].rule = &other
	}
	return changed
}
