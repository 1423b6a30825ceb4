package network

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
)

// kind is a kind of kernel entry for a peer.
type kind string

const (
	routeEntry     kind = "route"     // to its pods
	neighbourEntry kind = "neighbour" // the MAC address of its device
	forwardEntry   kind = "fdb"       // the address of the node that has that MAC address
)

// entry is one kernel entry for a peer.
type entry struct {
	kind kind
	link int
	dst  netip.Prefix // of a route
	via  netip.Addr   // the gateway, the neighbour, or the node; none for routes of WireGuard
	mac  string
}

// String is for the log.
func (e entry) String() string {
	switch {
	case e.kind == routeEntry && e.link == 0:
		return fmt.Sprintf("route that refuses %s", e.dst)
	case e.kind == routeEntry && !e.via.IsValid():
		return fmt.Sprintf("route to %s", e.dst)
	case e.kind == routeEntry:
		return fmt.Sprintf("route to %s via %s", e.dst, e.via)
	}
	return fmt.Sprintf("%s %s at %s", e.kind, e.mac, e.via)
}

// entriesOf returns the entries that a peer needs; links are the indices of the devices by name.
func (s setup) entriesOf(peer node, links map[string]int) (out []entry) {
	for _, f := range []struct {
		half   half
		device string
		mac    macFamily
	}{{peer.v4, device4(), ipv4}, {peer.v6, device6(), ipv6}} {
		switch {
		case !f.half.on():
		case s.backend == WireGuard:
			out = append(out, entry{kind: routeEntry, link: links[names.WireGuardLink], dst: f.half.pods})
		case s.backend == HostGW:
			out = append(out, entry{kind: routeEntry, link: s.parent.index, dst: f.half.pods, via: f.half.address})
		default:
			// The peer's device has the first address of its pods' network.
			link, at, mac := links[f.device], f.half.pods.Addr(), vtepMAC(peer.name, f.mac).String()
			out = append(out,
				entry{kind: routeEntry, link: link, dst: f.half.pods, via: at},
				entry{kind: neighbourEntry, link: link, via: at, mac: mac},
				entry{kind: forwardEntry, link: link, via: f.half.address, mac: mac})
		}
	}
	return out
}

// kernel is what exists: each entry with a function to remove it, which is nil for entries that are not ours.
type kernel map[entry]func() error

// difference compares the kernel with what each peer needs: which peers lack an entry, and which entries to remove.
func (k kernel) difference(wanted map[string][]entry) (incomplete map[string]bool, stale []entry) {
	needed := map[entry]bool{}
	incomplete = map[string]bool{}
	for peer, entries := range wanted {
		for _, e := range entries {
			needed[e] = true
			if _, there := k[e]; !there {
				incomplete[peer] = true
			}
		}
	}
	for e, remove := range k {
		if remove != nil && !needed[e] {
			stale = append(stale, e)
		}
	}
	return incomplete, stale
}

// readKernel reads what the kernel has in the cluster's networks, and on our devices (links: index by name).
func readKernel(cluster []netip.Prefix, links map[string]int) (kernel, error) {
	k := kernel{}
	devices := map[int]bool{}
	for _, index := range links {
		devices[index] = true
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := netlink.RouteList(nil, family) // of the main table
		if failed(err) {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			k.addRoute(r, cluster, devices)
		}
	}
	for index := range devices {
		for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
			list, err := netlink.NeighList(index, family)
			if failed(err) {
				return nil, fmt.Errorf("list neighbours: %w", err)
			}
			for _, n := range list {
				k.addNeighbour(n)
			}
		}
	}
	return k, nil
}

// failed: a list that changed while it was read is incomplete. That costs a needless addition, or a later removal.
func failed(err error) bool { return err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) }

func (k kernel) addRoute(r netlink.Route, cluster []netip.Prefix, devices map[int]bool) {
	if r.Dst == nil || r.Gw == nil && r.Protocol != names.RouteProtocol {
		return // not of a backend: cni0's own, for example
	}
	ip, okDst := netip.AddrFromSlice(r.Dst.IP)
	via, okGw := netip.AddrFromSlice(r.Gw)
	bits, _ := r.Dst.Mask.Size()
	dst := netip.PrefixFrom(ip.Unmap(), bits)
	if !okDst || !okGw && r.Gw != nil || !dst.IsValid() {
		return
	}
	e := entry{kind: routeEntry, link: r.LinkIndex, dst: dst, via: via.Unmap()}
	if r.Type == unix.RTN_UNREACHABLE {
		e.link = 0 // IPv6 has it on the loopback interface
	}
	switch {
	case devices[r.LinkIndex] || r.Protocol == names.RouteProtocol:
		k[e] = func() error { return gone(netlink.RouteDel(&r)) }
	case slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Overlaps(dst) }):
		k[e] = nil
	}
}

func (k kernel) addNeighbour(n netlink.Neigh) {
	ip, ok := netip.AddrFromSlice(n.IP)
	if !ok || len(n.HardwareAddr) == 0 || n.State&netlink.NUD_PERMANENT == 0 {
		return
	}
	e := entry{kind: neighbourEntry, link: n.LinkIndex, via: ip.Unmap(), mac: n.HardwareAddr.String()}
	if n.Family == unix.AF_BRIDGE {
		e.kind = forwardEntry
		n.Flags = netlink.NTF_SELF
	}
	k[e] = func() error { return gone(netlink.NeighDel(&n)) }
}

// gone: a missing entry need not be removed.
func gone(err error) error {
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return err
}
