package vip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Taken is the error of an address that another machine has.
type Taken struct {
	Address netip.Addr
	By      net.HardwareAddr
}

func (t Taken) Error() string {
	return fmt.Sprintf("another machine of the network (%s) has the virtual address %s: give --vip an address that nothing else uses", t.By, t.Address)
}

// Check returns why this machine cannot carry the address. With unused, no other server of the cluster can carry it:
// any answer is a Taken.
func Check(ctx context.Context, address netip.Addr, unused bool) error {
	l, err := find(address)
	if err != nil {
		return err
	}
	if !unused {
		return nil
	}
	by, err := l.probe(ctx)
	if err != nil {
		return fmt.Errorf("probe for the virtual address %s on %s: %w", address, l, err)
	}
	if by != nil {
		return Taken{address, by}
	}
	return nil
}

// link is an interface of this machine, a carrier.
type link struct {
	address netip.Addr
	link    netlink.Link
	ifi     *net.Interface
}

// find returns the interface whose network has the address, by the routes.
func find(address netip.Addr) (carrier, error) {
	family := netlink.FAMILY_V4
	if address.Is6() {
		family = netlink.FAMILY_V6
	}
	routes, err := netlink.RouteList(nil, family)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	index, longest := 0, -1
	for _, r := range routes {
		if r.Dst == nil || r.Gw != nil || len(r.MultiPath) > 0 || r.Type != unix.RTN_UNICAST || !r.Dst.Contains(address.AsSlice()) {
			continue
		}
		// An address with a mask of all ones, in IPv6, is a route too; with it this machine reaches itself only.
		if ones, bits := r.Dst.Mask.Size(); ones > longest && ones < bits {
			index, longest = r.LinkIndex, ones
		}
	}
	if longest <= 0 {
		return nil, fmt.Errorf("no interface of this machine is in the network of the virtual address %s: use an address of the network that the servers share", address)
	}
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		return nil, err
	}
	ifi, err := net.InterfaceByIndex(index)
	if err != nil {
		return nil, err
	}
	if len(ifi.HardwareAddr) != 6 {
		return nil, fmt.Errorf("the virtual address %s would be on %s, which is not an Ethernet interface: "+
			"use an address of another network of this machine", address, ifi.Name)
	}
	out := &link{address: address, link: l, ifi: ifi}
	all, err := netlink.AddrList(l, family)
	if err != nil {
		return nil, err
	}
	for _, a := range all {
		if out.is(a) && !ours(a) {
			return nil, fmt.Errorf("%s of this machine has the virtual address %s already: give --vip an address that nothing else uses", ifi.Name, address)
		}
	}
	return out, nil
}

func (l *link) String() string { return l.ifi.Name }

// is reports whether an entry of the interface is the virtual address.
func (l *link) is(a netlink.Addr) bool {
	ip, ok := netip.AddrFromSlice(a.IP)
	return ok && ip.Unmap() == l.address
}

// ours reports whether put can have added an address: alone in its network, deprecated, and for some seconds.
func ours(a netlink.Addr) bool {
	ones, bits := a.Mask.Size()
	return ones == bits && a.Flags&unix.IFA_F_DEPRECATED != 0 && a.Flags&unix.IFA_F_PERMANENT == 0
}

// put implements carrier. No connection of this machine's own starts from the address: it is deprecated. Neither is it
// taken for the node's (config.DetectNodeIPs).
func (l *link) put(life time.Duration) error {
	bits := l.address.BitLen()
	a := &netlink.Addr{
		IPNet:    &net.IPNet{IP: l.address.AsSlice(), Mask: net.CIDRMask(bits, bits)},
		ValidLft: int((life + time.Second - 1) / time.Second), // PreferedLft is 0: deprecated
	}
	if l.address.Is6() {
		a.Flags = unix.IFA_F_NODAD // it was probed for
	}
	return netlink.AddrReplace(l.link, a)
}

// remove implements carrier.
func (l *link) remove() error {
	family := netlink.FAMILY_V4
	if l.address.Is6() {
		family = netlink.FAMILY_V6
	}
	all, err := netlink.AddrList(l.link, family)
	if err != nil {
		return err
	}
	for _, a := range all {
		if !l.is(a) || !ours(a) {
			continue
		}
		if err := netlink.AddrDel(l.link, &netlink.Addr{IPNet: a.IPNet}); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) { // its life has ended
			return err
		}
	}
	return nil
}
