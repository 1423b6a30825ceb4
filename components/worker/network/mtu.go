package network

import (
	"fmt"
	"net"
)

// The overhead of VXLAN for a pod's packet (RFC 7348, section 5): the outer IPv4 header (20), UDP (8), VXLAN (8) and
// the inner Ethernet header (14). An outer IPv6 header is 20 longer.
const (
	vxlanOverhead = 50
	ipv6Longer    = 20
)

// wireGuardOverhead is that of WireGuard: the outer IPv4 header (20), UDP (8), WireGuard's header (16) and the
// authentication tag (16). The padding does not exceed the device's MTU.
const wireGuardOverhead = 60

// The smallest MTU with which a family works: RFC 8200, section 5, and RFC 791.
const (
	minMTU4 = 576
	minMTU6 = 1280
)

// PodMTU is the largest packet of a pod to another node that fits through an interface of the node with the MTU link:
// ipv6 means that the nodes also reach each other over IPv6. It is 0 when link is.
func PodMTU(b Backend, link int, ipv6 bool) int {
	overhead := map[Backend]int{VXLAN: vxlanOverhead, WireGuard: wireGuardOverhead}[b]
	if overhead > 0 && ipv6 {
		overhead += ipv6Longer
	}
	if link <= 0 {
		return 0
	}
	return link - overhead
}

// MTU is PodMTU for the interface that has the node's first address; 0 when that is not known.
func MTU(b Backend, nodeIPs []net.IP) int {
	if len(nodeIPs) == 0 {
		return 0
	}
	link, err := linkOf(nodeIPs[0])
	if err != nil {
		return 0
	}
	ipv6 := false
	for _, ip := range nodeIPs {
		ipv6 = ipv6 || ip.To4() == nil
	}
	return PodMTU(b, link.mtu, ipv6)
}

// checkMTU refuses an interface whose MTU is too small for what a pod must be able to send.
func checkMTU(b Backend, l parent, ipv6 bool) error {
	least := minMTU4
	if ipv6 {
		least = minMTU6
	}
	if got := PodMTU(b, l.mtu, ipv6); got < least {
		return fmt.Errorf("the MTU of %s is %d, which leaves %d for pods, and they need %d: raise it to at least %d",
			l.name, l.mtu, got, least, l.mtu+least-got)
	}
	return nil
}
