package servicelb

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/components/nodeaddr"
)

const (
	// roleLabel is on every node that Kubelith registers: server or agent.
	roleLabel = nodeaddr.RoleLabel
	// autoscalerTaint is on nodes that the cluster autoscaler is about to delete.
	// Source: k8s.io/cloud-provider/controllers/service.
	autoscalerTaint = "ToBeDeletedByClusterAutoscaler"
)

// address is one that a Service could get.
type address struct {
	node *corev1.Node
	ip   netip.Addr
}

// serves tells whether a node is there to serve from outside at all. Nodes that are not ours, such as simulated ones, are not.
func serves(n *corev1.Node) bool {
	if n.Labels[roleLabel] == "" || n.DeletionTimestamp != nil {
		return false
	}
	// As upstream's controller of cloud load balancers: any value but one that says false excludes.
	if value, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(value); excluded || err != nil {
			return false
		}
	}
	return !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerTaint })
}

// inPool are the nodes that are left when NodeLabel has had its say.
func inPool(nodes []*corev1.Node, pool string) []*corev1.Node {
	var labelled, others []*corev1.Node
	for _, n := range nodes {
		switch value := n.Labels[NodeLabel]; value {
		case "false":
		case "":
			others = append(others, n)
		default:
			labelled = append(labelled, n)
		}
	}
	switch {
	case pool != "":
		return slices.DeleteFunc(labelled, func(n *corev1.Node) bool { return n.Labels[NodeLabel] != pool })
	case len(labelled) > 0:
		return labelled
	}
	return others
}

// reports tells whether a node can be counted on: it is Ready or, when the Service has its address already, at least
// heard from. A kubelet that starts again says for some seconds that it is not ready; the kernel's rules do not care,
// and to take the address away would cut connections.
func reports(n *corev1.Node, held bool) bool {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue || held && c.Status == corev1.ConditionFalse
		}
	}
	return false
}

// addressesFor are the addresses of the Service's families at which the node is known to be.
func (w world) addressesFor(s *corev1.Service, n *corev1.Node) (all []address) {
	held := addressesOf(s)
	for _, ip := range w.believed[n.Name].Own {
		if ofFamily(s, ip) && w.proven(n, ip, slices.Contains(held, ip)) {
			all = append(all, address{n, ip})
		}
	}
	return all
}

// mayProve reports whether the node has an address of the Service's families at all.
func (w world) mayProve(s *corev1.Service, n *corev1.Node) bool {
	return slices.ContainsFunc(w.believed[n.Name].Own, func(ip netip.Addr) bool { return ofFamily(s, ip) })
}

func ofFamily(s *corev1.Service, ip netip.Addr) bool {
	family := corev1.IPv6Protocol
	if ip.Is4() {
		family = corev1.IPv4Protocol
	}
	return slices.Contains(s.Spec.IPFamilies, family)
}
