package nodeaddr

import (
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Internal returns the addresses at which others can reach a node. A node writes its status itself; if an address is no
// global unicast address, the API refuses the node's EndpointSlice.
func Internal(node *corev1.Node) []net.IP {
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); a.Type == corev1.NodeInternalIP && ip.IsGlobalUnicast() {
			ips = append(ips, ip)
		}
	}
	return ips
}

// Same reports whether two lists have the same addresses, in any order.
func Same(a, b []net.IP) bool {
	if len(a) != len(b) {
		return false
	}
	for _, ip := range a {
		if !slices.ContainsFunc(b, ip.Equal) {
			return false
		}
	}
	return true
}
