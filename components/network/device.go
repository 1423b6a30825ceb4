package network

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// How what we make in the kernel is told from what others make under the same names, in the same networks. It
// outlives this process and its files.
const (
	// LinkAlias is the alias (ip-link(8), "alias") of our interfaces.
	LinkAlias = "kubelith"
	// RouteProtocol is the origin of our routes through a gateway (ip-route(8), "proto"; /etc/iproute2/rt_protos has the
	// known ones). Those through our interfaces go with them and have no mark.
	RouteProtocol = 107
)

// Names of the devices, by flannel: one per family.
func device4() string { return fmt.Sprintf("flannel.%d", vni) }
func device6() string { return fmt.Sprintf("flannel-v6.%d", vni) }

// device is what a VXLAN device has to be like.
type device struct {
	name   string
	mac    net.HardwareAddr
	mtu    int
	parent int        // index of the interface below
	source netip.Addr // the node's address
}

// devices are those that a session needs.
func (s setup) devices() (out []device) {
	if s.backend != VXLAN {
		return nil
	}
	mtu := s.podMTU()
	if s.own.v4.on() {
		out = append(out, device{device4(), vtepMAC(s.own.name, ipv4), mtu, s.parent.index, s.own.v4.address})
	}
	if s.own.v6.on() {
		out = append(out, device{device6(), vtepMAC(s.own.name, ipv6), mtu, s.parent.index, s.own.v6.address})
	}
	return out
}

// differs says in what an existing interface is not the device, or nothing. flannel keeps a device with another MTU or
// MAC address, and then peers send to one that nobody has.
func (d device) differs(link netlink.Link) string {
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

// ownDevice tells whether the interface was made by this node: it has our alias or, where that was not yet set, our MAC
// address.
func ownDevice(link netlink.Link, nodeName string) bool {
	mac := link.Attrs().HardwareAddr
	return link.Attrs().Alias == LinkAlias ||
		link.Type() == "vxlan" && (bytes.Equal(mac, vtepMAC(nodeName, ipv4)) || bytes.Equal(mac, vtepMAC(nodeName, ipv6)))
}

// find returns the interface with the name, or nil.
func find(name string) (netlink.Link, error) {
	link, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for the interface %s: %w", name, err)
	}
	return link, nil
}

// foreignError is about an interface with the name of ours.
func foreignError(name string) error {
	return fmt.Errorf("the interface %s is not Kubelith's, another flannel or k3s made it: remove it with `ip link delete %s`, "+
		"or choose --network host-gw", name, name)
}

// clearDevices removes our devices that the setup does not need, or that are not as it needs them.
func (s *Server) clearDevices(want setup) error {
	needed := map[string]device{}
	for _, d := range want.devices() {
		needed[d.name] = d
	}
	for _, name := range []string{device4(), device6()} {
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

// intact tells whether the setup's devices are there, up, and as they have to be; it marks them as ours.
func (s setup) intact() (bool, error) {
	for _, d := range s.devices() {
		link, err := find(d.name)
		if err != nil {
			return false, err
		}
		if link == nil || d.differs(link) != "" || link.Attrs().Flags&net.FlagUp == 0 {
			return false, nil
		}
		if link.Attrs().Alias != LinkAlias {
			if err := netlink.LinkSetAlias(link, LinkAlias); err != nil {
				return false, fmt.Errorf("mark the interface %s: %w", d.name, err)
			}
		}
	}
	return true, nil
}
