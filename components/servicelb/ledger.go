package servicelb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/components/nodeaddr"
)

// claim is what only one Service may have.
type claim struct {
	node string
	port Port
}

// claims are what a Service must have for itself to get addresses.
func claims(s *corev1.Service, addresses []address) (all []claim) {
	for _, a := range addresses {
		for _, p := range s.Spec.Ports {
			all = append(all, claim{a.node.Name, Port{p.Protocol, p.Port}})
		}
	}
	return all
}

// ledger says who has which port of which node.
type ledger struct {
	own       map[claim]bool            // Kubelith's own
	nodePorts map[Port]*corev1.Service  // on every node
	held      map[claim]*corev1.Service // of Services of ours: reserved by status, or taken
}

func newLedger(w world) ledger {
	l := ledger{map[claim]bool{}, map[Port]*corev1.Service{}, map[claim]*corev1.Service{}}
	for _, n := range w.nodes {
		role := n.Labels[roleLabel]
		if role == "" {
			continue
		}
		for _, p := range w.opts.NodePorts {
			l.own[claim{n.Name, p}] = true
		}
		if kubelet := n.Status.DaemonEndpoints.KubeletEndpoint.Port; kubelet != 0 {
			l.own[claim{n.Name, Port{corev1.ProtocolTCP, kubelet}}] = true
		}
		if role == nodeaddr.RoleServer || w.hasAPI(n) {
			for _, p := range w.opts.ServerPorts {
				l.own[claim{n.Name, p}] = true
			}
		}
	}
	for _, s := range w.services {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				l.nodePorts[Port{p.Protocol, p.NodePort}] = s
			}
		}
		if s.Spec.HealthCheckNodePort != 0 {
			l.nodePorts[Port{corev1.ProtocolTCP, s.Spec.HealthCheckNodePort}] = s
		}
	}
	return l
}

// hasAPI reports whether the API is at an address of the node, whatever its label says.
func (w world) hasAPI(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		ip, err := netip.ParseAddr(a.Address)
		return err == nil && slices.Contains(w.opts.Addresses.API, ip.Unmap())
	})
}

// reserve keeps what a Service has by its status for it, until it is decided about.
func (l ledger) reserve(s *corev1.Service, all []claim) {
	for _, c := range all {
		if l.held[c] == nil {
			l.held[c] = s
		}
	}
}

func (l ledger) take(s *corev1.Service, all []claim) {
	for _, c := range all {
		l.held[c] = s
	}
}

// release lets go what a Service had by its status.
func (l ledger) release(s *corev1.Service) {
	for c, holder := range l.held {
		if holder == s {
			delete(l.held, c)
		}
	}
}

// conflicts says which of the claims others have, or nothing.
func (l ledger) conflicts(s *corev1.Service, all []claim) string {
	nodes := map[string]sets.Set[string]{} // by what is the matter
	for _, c := range all {
		by := l.taker(s, c)
		if by == "" {
			continue
		}
		what := fmt.Sprintf("port %s is taken by %s", c.port, by)
		if nodes[what] == nil {
			nodes[what] = sets.New[string]()
		}
		nodes[what].Insert(c.node)
	}
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(nodes)) {
		lines = append(lines, what+" on "+someOf(sets.List(nodes[what])))
	}
	return strings.Join(lines, "; ")
}

// taker says who but s has a port, or nothing.
func (l ledger) taker(s *corev1.Service, c claim) string {
	holder, node := l.held[c], l.nodePorts[c.port]
	switch {
	case l.own[c]:
		return "Kubelith itself"
	case holder != nil && holder != s:
		return holder.Namespace + "/" + holder.Name
	case holder == s:
		return "" // before somebody got it as a node port
	case node != nil && node != s:
		return "the node port of " + node.Namespace + "/" + node.Name
	}
	return ""
}

// someOf lists names, a few when there are many.
func someOf(names []string) string {
	const few = 3
	if len(names) <= few {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more nodes", strings.Join(names[:few], ", "), len(names)-few)
}
