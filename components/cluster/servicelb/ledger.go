package servicelb

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/names"
)

// claim is a port that only one Service may have.
type claim struct {
	node string
	port hostport.Port
}

// claims returns the ports that a Service needs exclusively to get addresses.
func claims(s *corev1.Service, addresses []address) (all []claim) {
	for _, a := range addresses {
		for _, p := range s.Spec.Ports {
			all = append(all, claim{a.node.Name, hostport.Port{Protocol: p.Protocol, Number: p.Port}})
		}
	}
	return all
}

// ledger records which Service has which port of which node.
type ledger struct {
	own       map[claim]bool                    // Kubelith's own
	nodePorts map[hostport.Port]*corev1.Service // on every node
	held      map[claim]*corev1.Service         // of our Services: reserved by status, or taken
}

func newLedger(w world) ledger {
	l := ledger{map[claim]bool{}, map[hostport.Port]*corev1.Service{}, map[claim]*corev1.Service{}}
	for _, n := range w.nodes {
		role := n.Labels[names.RoleLabel]
		if role == "" {
			continue
		}
		for _, p := range w.opts.NodePorts {
			l.own[claim{n.Name, p}] = true
		}
		if kubelet := n.Status.DaemonEndpoints.KubeletEndpoint.Port; kubelet != 0 {
			l.own[claim{n.Name, hostport.Port{Protocol: corev1.ProtocolTCP, Number: kubelet}}] = true
		}
		if role == names.RoleServer || w.hasAPI(n) {
			for _, p := range w.opts.ServerPorts {
				l.own[claim{n.Name, p}] = true
			}
		}
	}
	for _, s := range w.services {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 {
				l.nodePorts[hostport.Port{Protocol: p.Protocol, Number: p.NodePort}] = s
			}
		}
		if s.Spec.HealthCheckNodePort != 0 {
			l.nodePorts[hostport.Port{Protocol: corev1.ProtocolTCP, Number: s.Spec.HealthCheckNodePort}] = s
		}
	}
	return l
}

// hasAPI reports whether the API is at an address of the node, whatever its label.
func (w world) hasAPI(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
		ip, err := netip.ParseAddr(a.Address)
		return err == nil && slices.Contains(w.opts.Addresses.API, ip.Unmap())
	})
}

// reserve keeps the ports that a Service has by its status until it is decided.
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

// release frees the ports that a Service had by its status.
func (l ledger) release(s *corev1.Service) {
	for c, holder := range l.held {
		if holder == s {
			delete(l.held, c)
		}
	}
}

// conflicts returns which of the claims are taken by others, or "".
func (l ledger) conflicts(s *corev1.Service, all []claim) string {
	nodes := map[string]sets.Set[string]{} // by conflict
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

// taker returns what other than s has a port, or "".
func (l ledger) taker(s *corev1.Service, c claim) string {
	holder, node := l.held[c], l.nodePorts[c.port]
	switch {
	case l.own[c]:
		return "Kubelith itself"
	case holder != nil && holder != s:
		return holder.Namespace + "/" + holder.Name
	case holder == s:
		return "" // s had it before another Service got it as a node port
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
