package servicelb

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/nodeaddr"
)

// world is the input of the decisions.
type world struct {
	services []*corev1.Service // all of the cluster: Services of other types may have node ports
	nodes    []*corev1.Node
	// local returns the names of the nodes that have a ready endpoint of a Service.
	local func(*corev1.Service) sets.Set[string]
	// listens reports whether the listener on a port of the node is one of the Service's own pods, in the host's
	// network.
	listens func(s *corev1.Service, n *corev1.Node, p hostport.Port) bool
	// proven reports whether the node may be at this address; held means that the Service has the address already.
	proven func(n *corev1.Node, ip netip.Addr, held bool) bool
	opts   Options

	believed map[string]nodeaddr.Addresses // by node name; decide sets it
}

// decision is what a Service gets.
type decision struct {
	service   *corev1.Service
	addresses []netip.Addr // sorted
	// reason and message of an Event, if there is something for the Service's owner to know.
	reason, message string
}

// Reasons of Events.
const (
	portConflict = "PortConflict"
	hostPort     = "HostPort"
	noAddress    = "NoAddress"
)

// decide returns the addresses of each of our Services.
//
// A Service gets all its addresses or none: with half of them, only some clients would reach it. It gets none when one
// of its ports is not free on one of its nodes. The order of precedence is: the Service that has the port in its status
// already, then the older one, then the first by name. The result depends on w alone, so a second pass over the same
// objects changes nothing.
func decide(w world) []decision {
	w.believed = w.opts.Addresses.Of(w.nodes)
	var mine []*corev1.Service
	for _, s := range w.services {
		if owns(s) {
			mine = append(mine, s)
		}
	}
	slices.SortFunc(mine, before)
	nodes := slices.DeleteFunc(slices.Clone(w.nodes), func(n *corev1.Node) bool { return !serves(n) })

	decisions := make([]decision, len(mine))
	wanted := make([][]address, len(mine))
	ports := newLedger(w)
	for i, s := range mine {
		decisions[i].service = s
		if wanted[i], decisions[i].message = w.candidates(s, nodes); decisions[i].message != "" {
			decisions[i].reason = noAddress
		} else if wanted[i], decisions[i].message = w.withoutHosts(s, wanted[i], ports); decisions[i].message != "" {
			decisions[i].reason = hostPort
		}
		ports.reserve(s, claims(s, holding(s, wanted[i])))
	}
	for i, s := range mine {
		d, all := &decisions[i], claims(s, wanted[i])
		if why := ports.conflicts(s, all); why != "" {
			d.reason, d.message = portConflict, why
			ports.release(s)
			continue
		}
		ports.take(s, all)
		for _, a := range wanted[i] {
			d.addresses = append(d.addresses, a.ip)
		}
		d.addresses = sorted(d.addresses)
	}
	return decisions
}

// owns reports whether we are the load balancer of a Service.
func owns(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.DeletionTimestamp == nil &&
		(s.Spec.LoadBalancerClass == nil || *s.Spec.LoadBalancerClass == Class)
}

// before is the order in which Services get ports.
func before(a, b *corev1.Service) int {
	has, had := len(addressesOf(a)) > 0, len(addressesOf(b)) > 0
	switch {
	case has && !had:
		return -1
	case had && !has:
		return 1
	}
	return cmp.Or(
		a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
		strings.Compare(a.Namespace, b.Namespace),
		strings.Compare(a.Name, b.Name),
	)
}

// candidates returns the addresses that a Service should have. There may be none because a node or an endpoint does not
// exist yet; any other reason is in why.
func (w world) candidates(s *corev1.Service, nodes []*corev1.Node) (all []address, why string) {
	pool := s.Annotations[PoolAnnotation]
	chosen := inPool(nodes, pool)
	switch {
	case len(nodes) == 0:
		return nil, ""
	case len(chosen) == 0 && pool != "":
		return nil, fmt.Sprintf("no node has the label %s=%s, which annotation %s requires", NodeLabel, pool, PoolAnnotation)
	case len(chosen) == 0:
		return nil, fmt.Sprintf("all nodes have the label %s=false", NodeLabel)
	}
	for _, n := range chosen {
		all = append(all, w.addressesFor(s, n)...)
	}
	if len(all) == 0 && !slices.ContainsFunc(chosen, func(n *corev1.Node) bool { return w.mayProve(s, n) }) {
		return nil, fmt.Sprintf("no node has an address of the family %s", families(s))
	}
	if ip := s.Spec.LoadBalancerIP; ip != "" {
		asked, _ := netip.ParseAddr(ip)
		all = slices.DeleteFunc(all, func(a address) bool { return a.ip != asked })
		if len(all) == 0 && !slices.ContainsFunc(chosen, func(n *corev1.Node) bool { return slices.Contains(w.believed[n.Name].Own, asked) }) {
			return nil, fmt.Sprintf("no eligible node has the address %s of spec.loadBalancerIP", ip)
		}
	}
	held := holding(s, all)
	all = slices.DeleteFunc(all, func(a address) bool { return !reports(a.node, slices.Contains(held, a)) })
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		with := w.local(s)
		all = slices.DeleteFunc(all, func(a address) bool { return !with.Has(a.node.Name) })
	}
	return all, ""
}

func families(s *corev1.Service) string {
	var out []string
	for _, f := range s.Spec.IPFamilies {
		out = append(out, string(f))
	}
	return strings.Join(out, " or ")
}

// holding returns those of the addresses that the Service has already.
func holding(s *corev1.Service, all []address) (has []address) {
	status := addressesOf(s)
	for _, a := range all {
		if slices.Contains(status, a.ip) {
			has = append(has, a)
		}
	}
	return has
}
