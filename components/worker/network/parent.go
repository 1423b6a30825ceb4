package network

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// parent is the interface of the node over which the nodes reach each other.
type parent struct {
	index, mtu int
	name       string
}

// linkOf finds the interface that has the address. It is not always that of the default route: nodes may have a
// separate network.
func linkOf(ip net.IP) (parent, error) {
	family := netlink.FAMILY_V6
	if ip.To4() != nil {
		family = netlink.FAMILY_V4
	}
	addrs, err := netlink.AddrList(nil, family)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return parent{}, fmt.Errorf("list the addresses of this host: %w", err)
	}
	for _, a := range addrs {
		if !a.IP.Equal(ip) {
			continue
		}
		link, err := netlink.LinkByIndex(a.LinkIndex)
		if err != nil {
			return parent{}, fmt.Errorf("the interface that has the node IP %s: %w", ip, err)
		}
		if link.Attrs().Flags&net.FlagLoopback != 0 {
			return parent{}, fmt.Errorf("the node IP %s is on the loopback interface: use an address of another one for --node-ip", ip)
		}
		return parent{index: a.LinkIndex, mtu: link.Attrs().MTU, name: link.Attrs().Name}, nil
	}
	return parent{}, fmt.Errorf("no interface has the node IP %s: use an address of this host for --node-ip", ip)
}

// parentOf returns the one interface that has the node's addresses of all enabled families.
func parentOf(n node) (parent, error) {
	var found parent
	for _, h := range []half{n.v4, n.v6} {
		if !h.on() {
			continue
		}
		p, err := linkOf(h.address.AsSlice())
		switch {
		case err != nil:
			return parent{}, err
		case found.index != 0 && found.index != p.index:
			return parent{}, fmt.Errorf("the node IPs %s and %s are on different interfaces (%s, %s), and nodes reach each other over one: "+
				"give --node-ip two addresses of one interface", n.v4.address, n.v6.address, found.name, p.name)
		}
		found = p
	}
	return found, nil
}

// direct reports whether the address is a neighbour's on the interface, with no router in between.
func direct(p parent, to netip.Addr) (bool, error) {
	routes, err := netlink.RouteGet(to.AsSlice())
	if err != nil {
		return false, fmt.Errorf("route to %s: %w", to, err)
	}
	return len(routes) == 1 && routes[0].Gw == nil && routes[0].LinkIndex == p.index, nil
}
