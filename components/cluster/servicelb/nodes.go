package servicelb

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	nodeutil "k8s.io/component-helpers/node/util"

	"kubelith.io/kubelith/base/names"
)

const (
	// autoscalerTaint is on nodes that the cluster autoscaler is about to delete.
	// Source: k8s.io/cloud-provider/controllers/service.
	autoscalerTaint = "ToBeDeletedByClusterAutoscaler"
)

// address is one that a Service could get.
type address struct {
	node *corev1.Node
	ip   netip.Addr
}

// serves reports whether a node can serve clients outside the cluster. Nodes that are not ours, such as simulated ones,
// cannot.
func serves(n *corev1.Node) bool {
	if n.Labels[names.RoleLabel] == "" || n.DeletionTimestamp != nil {
		return false
	}
	// As in upstream's controller of cloud load balancers: any value except false excludes.
	if value, labelled := n.Labels[corev1.LabelNodeExcludeBalancers]; labelled {
		if excluded, err := strconv.ParseBool(value); excluded || err != nil {
			return false
		}
	}
	return !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerTaint })
}

// inPool returns the nodes that NodeLabel selects.
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

// reports reports whether a node is reliable: it is Ready or, when the Service has its address already, its kubelet at
// least reports. A restarted kubelet is not Ready for some seconds; the kernel's rules still work, and removing the
// address would cut connections.
func reports(n *corev1.Node, held bool) bool {
	_, c := nodeutil.GetNodeCondition(&n.Status, corev1.NodeReady)
	return c != nil && (c.Status == corev1.ConditionTrue || held && c.Status == corev1.ConditionFalse)
}

// addressesFor returns the addresses of the Service's families at which the node is known to be.
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
