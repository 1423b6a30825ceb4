package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DetectNodeIPs returns this node's address for each family of the cluster CIDRs, in their order: the preferred address
// of the default route's interface, or without such a route the first usable one of any interface that is up. It never
// takes an address inside clusterCIDRs: that belongs to a pod bridge. Only the first family must have an address.
func DetectNodeIPs(clusterCIDRs []string) ([]string, error) {
	var pods []netip.Prefix
	for _, c := range clusterCIDRs {
		prefix, err := netip.ParsePrefix(c)
		if err != nil {
			return nil, fmt.Errorf("%s: %q is not a CIDR: write a network as in 10.42.0.0/16 or fd42::/56", label("clusterCIDR"), c)
		}
		pods = append(pods, prefix)
	}
	var out []string
	for i, c := range pods {
		host, err := readHost(c.Addr().Is6())
		if err != nil {
			return nil, fmt.Errorf("detect the node's address (%w): set %s", err, label("nodeIP"))
		}
		ip := host.nodeIP(pods)
		if ip.IsValid() {
			out = append(out, ip.String())
		} else if i == 0 {
			return nil, fmt.Errorf("this host has no %s address that other hosts can reach: set %s", family(c.Addr()), label("nodeIP"))
		}
	}
	return out, nil
}

// MovedNodeIPs returns the addresses that replaced had, which DetectNodeIPs found before, and whether any of those is
// missing: while all of them are on an interface, nothing replaces them. When nothing has replaced a missing one, there
// are none either: an unplugged cable is no move. Only addresses of an interface with a default route count: bridges of
// other software have addresses too.
func MovedNodeIPs(clusterCIDRs, had []string) (now []string, missing bool, err error) {
	present, err := net.InterfaceAddrs()
	if err != nil {
		return nil, false, fmt.Errorf("list addresses: %w", err)
	}
	var pods []netip.Prefix
	for _, c := range clusterCIDRs {
		prefix, err := netip.ParsePrefix(c)
		if err != nil {
			return nil, false, err
		}
		pods = append(pods, prefix)
	}
	return moved(pods, had, present, readHost)
}

func moved(pods []netip.Prefix, had []string, present []net.Addr, read func(v6 bool) (host, error)) (now []string, missing bool, err error) {
	there := func(address string) bool {
		return slices.ContainsFunc(present, func(a net.Addr) bool {
			ip, ok := a.(*net.IPNet)
			return ok && ip.IP.String() == address
		})
	}
	if !slices.ContainsFunc(had, func(address string) bool { return !there(address) }) {
		return nil, false, nil
	}
	for _, address := range had {
		if there(address) {
			now = append(now, address)
			continue
		}
		old, err := netip.ParseAddr(address)
		if err != nil {
			return nil, true, err
		}
		h, err := read(old.Is6())
		if err != nil {
			return nil, true, err
		}
		ip := h.nodeIP(pods)
		if !ip.IsValid() || !h.leadsOut(ip) {
			return nil, true, nil
		}
		now = append(now, ip.String())
	}
	return now, true, nil
}

// leadsOut reports whether the address is on an interface with a default route.
func (h host) leadsOut(ip netip.Addr) bool {
	return slices.ContainsFunc(h.routes, func(r route) bool {
		return r.source == ip || slices.Contains(h.addrs, address{link: r.link, ip: ip})
	})
}

// host is one address family of the host.
type host struct {
	routes []route   // default routes
	addrs  []address // of interfaces that are up, in the kernel's order
}

type route struct {
	link   int // interface index
	metric int // the lowest wins
	source netip.Addr
}

type address struct {
	link int
	ip   netip.Addr
}

// nodeIP chooses; it returns the zero Addr when no address is usable.
func (h host) nodeIP(pods []netip.Prefix) netip.Addr {
	usable := func(ip netip.Addr) bool {
		if !ip.IsGlobalUnicast() {
			return false
		}
		for _, c := range pods {
			if c.Contains(ip) {
				return false
			}
		}
		return true
	}
	var best *route
	for i, r := range h.routes {
		if best == nil || r.metric < best.metric {
			best = &h.routes[i]
		}
	}
	if best != nil {
		if usable(best.source) {
			return best.source
		}
		for _, a := range h.addrs {
			if a.link == best.link && usable(a.ip) {
				return a.ip
			}
		}
	}
	for _, a := range h.addrs {
		if usable(a.ip) {
			return a.ip
		}
	}
	return netip.Addr{}
}

// readHost queries the kernel.
func readHost(v6 bool) (host, error) {
	family := netlink.FAMILY_V4
	if v6 {
		family = netlink.FAMILY_V6
	}
	var h host
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return h, fmt.Errorf("list routes: %w", err)
	}
	for _, r := range routes {
		if r.Dst != nil {
			if ones, _ := r.Dst.Mask.Size(); ones != 0 {
				continue
			}
		}
		if r.Type != 0 && r.Type != unix.RTN_UNICAST { // an unreachable default route reaches nothing
			continue
		}
		link := r.LinkIndex
		if len(r.MultiPath) > 0 {
			link = r.MultiPath[0].LinkIndex
		}
		h.routes = append(h.routes, route{link: link, metric: r.Priority, source: toAddr(r.Src)})
	}
	links, err := netlink.LinkList()
	if err != nil {
		return h, fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		addrs, err := netlink.AddrList(l, family)
		if err != nil {
			return h, fmt.Errorf("list addresses of %s: %w", l.Attrs().Name, err)
		}
		for _, a := range addrs {
			// A temporary (IFA_F_SECONDARY in IPv6), secondary or deprecated address may disappear.
			if a.Flags&(unix.IFA_F_SECONDARY|unix.IFA_F_DEPRECATED|unix.IFA_F_TENTATIVE) == 0 {
				h.addrs = append(h.addrs, address{link: l.Attrs().Index, ip: toAddr(a.IP)})
			}
		}
	}
	return h, nil
}

func toAddr(ip net.IP) netip.Addr {
	addr, _ := netip.AddrFromSlice(ip)
	return addr.Unmap()
}
