package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"kubelith.io/kubelith/base/names"
)

// Names of the devices, from flannel: one per family.
func device4() string { return fmt.Sprintf("flannel.%d", vni) }
func device6() string { return fmt.Sprintf("flannel-v6.%d", vni) }

// Kinds of devices, in netlink's words.
const (
	vxlanKind     = "vxlan"
	wireGuardKind = "wireguard"
)

// device is a wanted device. WireGuard's has a name, a kind and an MTU only: the rest can be changed while it is in use
// (tunnel).
type device struct {
	name   string
	kind   string
	mac    net.HardwareAddr
	mtu    int
	parent int        // index of the interface below
	source netip.Addr // the node's address
}

// devices returns the devices that a session needs.
func (s setup) devices() (out []device) {
	mtu := s.podMTU()
	switch s.backend {
	case WireGuard:
		return []device{{name: names.WireGuardLink, kind: wireGuardKind, mtu: mtu}}
	case VXLAN:
	default:
		return nil
	}
	if s.own.v4.on() {
		out = append(out, device{device4(), vxlanKind, vtepMAC(s.own.name, ipv4), mtu, s.parent.index, s.own.v4.address})
	}
	if s.own.v6.on() {
		out = append(out, device{device6(), vxlanKind, vtepMAC(s.own.name, ipv6), mtu, s.parent.index, s.own.v6.address})
	}
	return out
}

// differs returns how an existing interface differs from the device, or "". flannel keeps a device with another MTU or
// MAC address, and peers would send to an address that does not exist.
func (d device) differs(link netlink.Link) string {
	if d.kind == wireGuardKind {
		if link.Type() != d.kind {
			return "kind " + link.Type()
		}
		return ""
	}
	vx, ok := link.(*netlink.Vxlan)
	switch {
	case !ok:
		return "kind " + link.Type()
	case vx.VxlanId != vni:
		return fmt.Sprintf("VNI %d", vx.VxlanId)
	case vx.Port != port:
		return fmt.Sprintf("port %d", vx.Port)
	case vx.VtepDevIndex != d.parent:
		return fmt.Sprintf("interface below %d", vx.VtepDevIndex)
	case !vx.SrcAddr.Equal(d.source.AsSlice()):
		return fmt.Sprintf("source %s", vx.SrcAddr)
	case vx.MTU != d.mtu:
		return fmt.Sprintf("MTU %d", vx.MTU)
	case !bytes.Equal(vx.HardwareAddr, d.mac):
		return fmt.Sprintf("MAC address %s", vx.HardwareAddr)
	case vx.Learning:
		return "learning"
	}
	return ""
}

// ownDevice reports whether this node created the interface: it has our alias or, where that was not yet set, our MAC
// address.
func ownDevice(link netlink.Link, nodeName string) bool {
	mac := link.Attrs().HardwareAddr
	return link.Attrs().Alias == names.LinkAlias ||
		link.Type() == vxlanKind && (bytes.Equal(mac, vtepMAC(nodeName, ipv4)) || bytes.Equal(mac, vtepMAC(nodeName, ipv6)))
}

// find returns the interface with the name, or nil.
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up the interface %s: %w", name, err)
	}
	return link, nil
}

// foreignError is about an interface that has the name of our device.
func foreignError(name string) error {
	if name == names.WireGuardLink {
		return fmt.Errorf("the interface %s is not Kubelith's: remove it with `ip link delete %s`", name, name)
	}
	return fmt.Errorf("the interface %s is not Kubelith's, another flannel or k3s created it: remove it with `ip link delete %s`, "+
		"or choose --network host-gw", name, name)
}

// clearDevices removes our devices that the setup does not need, or that differ from it.
func (s *Server) clearDevices(want setup) error {
	needed := map[string]device{}
	for _, d := range want.devices() {
		needed[d.name] = d
	}
	for _, name := range []string{device4(), device6(), names.WireGuardLink} {
		link, err := find(name)
		if err != nil {
			return err
		}
		if link == nil {
			continue
		}
		d, needs := needed[name]
		why := "not needed"
		if needs {
			why = d.differs(link)
		}
		switch {
		case !ownDevice(link, s.opts.NodeName) && needs:
			return foreignError(name)
		case !ownDevice(link, s.opts.NodeName) || why == "":
			continue
		}
		if err := netlink.LinkDel(link); err != nil {
			return fmt.Errorf("remove the interface %s: %w", name, err)
		}
		s.opts.Log.Infof("removed the interface %s (%s)", name, why)
	}
	return nil
}

// intact reports whether the setup's devices exist, are up, and match; it marks them as ours.
func (s setup) intact() (bool, error) {
	for _, d := range s.devices() {
		link, err := find(d.name)
		if err != nil {
			return false, err
		}
		if link == nil || d.differs(link) != "" || link.Attrs().Flags&net.FlagUp == 0 {
			return false, nil
		}
		if link.Attrs().Alias != names.LinkAlias {
			if err := netlink.LinkSetAlias(link, names.LinkAlias); err != nil {
				return false, fmt.Errorf("mark the interface %s: %w", d.name, err)
			}
		}
	}
	return true, nil
}
