package servicelb

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// HostPortsAnnotation is where a Node has the ports on which its host listens, as "22/TCP,111/UDP". The node writes it itself: a
// wrong one takes Services away from that node alone.
const HostPortsAnnotation = "kubelith.io/host-ports"

// mostHostPorts bounds what is read of an annotation.
const mostHostPorts = 4096

// withoutHosts takes away the addresses of nodes whose hosts listen on a port of the Service themselves, and says so. A Service would
// take the port from them: SSH, for one. Of Kubelith's own ports, and of node ports, the ledger knows more. A node that has not told its ports is waited for; it keeps what it has.
func (w world) withoutHosts(s *corev1.Service, all []address, ports ledger) (left []address, message string) {
	nodes, silent := map[string]sets.Set[string]{}, sets.New[string]()
	held := holding(s, all)
	for _, a := range all {
		taken, told := hostPorts(a.node)
		if !told && !slices.Contains(held, a) {
			silent.Insert(a.node.Name)
			continue
		}
		free := true
		for _, p := range s.Spec.Ports {
			port := Port{p.Protocol, p.Port}
			if !taken.Has(port) || ports.own[claim{a.node.Name, port}] || ports.nodePorts[port] != nil || w.listens(s, a.node, port) {
				continue
			}
			free = false
			what := fmt.Sprintf("port %s belongs to a program of the host", port)
			if nodes[what] == nil {
				nodes[what] = sets.New[string]()
			}
			nodes[what].Insert(a.node.Name)
		}
		if free {
			left = append(left, a)
		}
	}
	var lines []string
	for _, what := range slices.Sorted(maps.Keys(nodes)) {
		lines = append(lines, what+" on "+someOf(sets.List(nodes[what])))
	}
	if len(lines) == 0 && len(left) == 0 && len(silent) > 0 {
		return left, fmt.Sprintf("%s has not told the ports of its host yet (annotation %s)", someOf(sets.List(silent)), HostPortsAnnotation)
	}
	return left, strings.Join(lines, "; ")
}

// hostPorts are the ports on which the host of a node listens; told, that the node has said so.
func hostPorts(n *corev1.Node) (ports sets.Set[Port], told bool) {
	text, told := n.Annotations[HostPortsAnnotation]
	ports = sets.New[Port]()
	for item := range strings.SplitSeq(text, ",") {
		number, protocol, _ := strings.Cut(item, "/")
		if p, err := strconv.ParseUint(number, 10, 16); err == nil && len(ports) < mostHostPorts {
			ports.Insert(Port{corev1.Protocol(protocol), int32(p)})
		}
	}
	return ports, told
}

// textOf is the annotation for some ports.
func textOf(ports sets.Set[Port]) string {
	all := ports.UnsortedList()
	slices.SortFunc(all, func(a, b Port) int {
		if a.Number != b.Number {
			return int(a.Number) - int(b.Number)
		}
		return strings.Compare(string(a.Protocol), string(b.Protocol))
	})
	var texts []string
	for _, p := range all[:min(len(all), mostHostPorts)] {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}
