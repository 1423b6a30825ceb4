package servicelb

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/names"
)

// withoutHosts removes the addresses of nodes whose hosts listen on a port of the Service themselves, and returns the
// reason. A Service would take the port from them: SSH, for example. The ledger has Kubelith's own ports, and node
// ports. A Service waits for a node that has not reported its ports, and keeps the addresses that it has there.
func (w world) withoutHosts(s *corev1.Service, all []address, ports ledger) (left []address, message string) {
	nodes, silent := map[string]sets.Set[string]{}, sets.New[string]()
	held := holding(s, all)
	for _, a := range all {
		taken, reported := hostport.Of(a.node)
		if !reported && !slices.Contains(held, a) {
			silent.Insert(a.node.Name)
			continue
		}
		free := true
		for _, p := range s.Spec.Ports {
			port := hostport.Port{Protocol: p.Protocol, Number: p.Port}
			if !taken.Has(port) || ports.own[claim{a.node.Name, port}] || ports.nodePorts[port] != nil || w.listens(s, a.node, port) {
				continue
			}
			free = false
			what := fmt.Sprintf("port %s is in use by a host process", port)
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
		return left, fmt.Sprintf("waiting for the host ports of %s (annotation %s)", someOf(sets.List(silent)), names.HostPortsAnnotation)
	}
	return left, strings.Join(lines, "; ")
}
