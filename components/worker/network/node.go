package network

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
)

// half is one address family of a node.
type half struct {
	pods    netip.Prefix // addresses of its pods
	address netip.Addr   // of the node itself
}

// on reports whether the pods can be reached over this family.
func (h half) on() bool { return h.pods.IsValid() && h.address.IsValid() }

// node is the relevant part of a Node. Two are equal when nothing needs to be done.
type node struct {
	name   string
	member bool // it runs Kubelith
	v4, v6 half
	key    wgtypes.Key // WireGuard's public key; zero: none
}

// on reports whether any family works.
func (n node) on() bool { return n.v4.on() || n.v6.on() }

// describe reads a Node object. It ignores values that cannot be parsed.
func describe(n *corev1.Node) node {
	d := node{name: n.Name}
	_, d.member = n.Labels[names.RoleLabel]
	if key, err := wgtypes.ParseKey(n.Annotations[names.WireGuardKeyAnnotation]); err == nil {
		d.key = key
	}
	cidrs := n.Spec.PodCIDRs
	if len(cidrs) == 0 && n.Spec.PodCIDR != "" {
		cidrs = []string{n.Spec.PodCIDR}
	}
	for _, c := range cidrs {
		if prefix, err := netip.ParsePrefix(c); err == nil {
			if h := d.half(prefix.Addr()); h.pods == (netip.Prefix{}) {
				h.pods = prefix.Masked()
			}
		}
	}
	for _, a := range n.Status.Addresses {
		if a.Type != corev1.NodeInternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
			if h := d.half(ip); h.address == (netip.Addr{}) {
				h.address = ip.Unmap()
			}
		}
	}
	return d
}

func (n *node) half(ip netip.Addr) *half {
	if ip.Unmap().Is4() {
		return &n.v4
	}
	return &n.v6
}

// macFamily selects one of a node's two devices.
type macFamily string

const (
	ipv4 macFamily = "ipv4"
	ipv6 macFamily = "ipv6"
)

// vtepMAC is the MAC address of the device at which a node receives VXLAN packets. It is derived from the node's name,
// so that other nodes know it, and a restart does not change it: locally administered, unicast.
func vtepMAC(nodeName string, f macFamily) net.HardwareAddr {
	sum := sha256.Sum256([]byte("kubelith vtep|" + nodeName + "|" + string(f)))
	mac := net.HardwareAddr(sum[:6])
	mac[0] = mac[0]&0xfe | 0x02
	return mac
}

// peers returns the nodes that own connects to: members other than itself, with the families that both have. A node
// reports its own addresses, so they must not take traffic from others: its pods' addresses must be the cluster's, and
// no other node's; the older Node wins. refused has the reason for each node left out, by name.
func peers(all []*corev1.Node, own node, cluster []netip.Prefix) (out []node, refused map[string]string) {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *corev1.Node) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	refused = map[string]string{}
	taken := []netip.Prefix{own.v4.pods, own.v6.pods}
	for _, obj := range all {
		n := describe(obj)
		if n.name == own.name || !n.member {
			continue
		}
		for _, pair := range []struct{ theirs, ours *half }{{&n.v4, &own.v4}, {&n.v6, &own.v6}} {
			if !pair.ours.on() || !pair.theirs.on() {
				*pair.theirs = half{}
				continue
			}
			if why := objection(*pair.theirs, *pair.ours, cluster, taken); why != "" {
				refused[n.name] = why
				*pair.theirs = half{}
				continue
			}
			taken = append(taken, pair.theirs.pods)
		}
		if n.on() {
			out = append(out, n)
		}
	}
	return out, refused
}

// objection returns the error in what a node reports about itself, or "".
func objection(theirs, ours half, cluster, taken []netip.Prefix) string {
	inside := func(p netip.Prefix) bool { return p.Contains(theirs.pods.Addr()) && p.Bits() <= theirs.pods.Bits() }
	overlaps := func(p netip.Prefix) bool { return p.IsValid() && p.Overlaps(theirs.pods) }
	switch {
	case !slices.ContainsFunc(cluster, inside):
		return fmt.Sprintf("its pod CIDR %s is not part of the cluster's", theirs.pods)
	case slices.ContainsFunc(taken, overlaps):
		return fmt.Sprintf("its pod CIDR %s is another node's", theirs.pods)
	case theirs.address == ours.address:
		return fmt.Sprintf("its address %s is this node's", theirs.address)
	case !theirs.address.IsGlobalUnicast():
		return fmt.Sprintf("its address %s cannot be reached", theirs.address)
	}
	return ""
}
