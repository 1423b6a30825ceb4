package network

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"

	"kubelith.io/kubelith/base/names"
)

// vni and port are flannel's defaults, and so are the names of the devices, which it derives from vni.
const (
	vni  = 1
	port = names.VXLANPort
)

// vtepOf returns what flannel's vxlan backend stores in a lease about the device of a node.
func vtepOf(nodeName string, f macFamily) (json.RawMessage, error) {
	return json.Marshal(struct {
		VNI     int
		VtepMAC string
	}{vni, vtepMAC(nodeName, f).String()})
}

// leaseOf returns flannel's form of a node: the enabled families, its pods' addresses and where they are reached.
func leaseOf(b Backend, n node) (lease.Lease, error) {
	l := lease.Lease{
		EnableIPv4: n.v4.on(),
		EnableIPv6: n.v6.on(),
		IPv6Subnet: ip.IP6Net{IP: ip.FromIP6(net.IPv6zero)}, // flannel compares it when the other lease has IPv6
		Attrs:      lease.LeaseAttrs{BackendType: string(b)},
	}
	var err error
	if l.EnableIPv4 {
		l.Subnet, l.Attrs.PublicIP = net4(n.v4.pods), ip.FromIP(n.v4.address.AsSlice())
		if l.Attrs.BackendData, err = vtepOf(n.name, ipv4); err != nil {
			return lease.Lease{}, err
		}
	}
	if l.EnableIPv6 {
		l.IPv6Subnet, l.Attrs.PublicIPv6 = net6(n.v6.pods), ip.FromIP6(n.v6.address.AsSlice())
		if l.Attrs.BackendV6Data, err = vtepOf(n.name, ipv6); err != nil {
			return lease.Lease{}, err
		}
	}
	return l, nil
}

// configOf returns flannel's configuration of the whole network, for a node with these families.
func configOf(b Backend, own node, cluster []netip.Prefix, podMTU int) (*subnet.Config, error) {
	c := &subnet.Config{EnableIPv4: own.v4.on(), EnableIPv6: own.v6.on(), BackendType: string(b)}
	for _, p := range cluster {
		if p.Addr().Is4() {
			c.Network = net4(p)
		} else {
			c.IPv6Network = net6(p)
		}
	}
	if c.EnableIPv6 && c.IPv6Network.IP == nil || c.EnableIPv4 && c.Network.Empty() {
		return nil, fmt.Errorf("the cluster CIDRs %v lack a family that this node's pods have", cluster)
	}
	var err error
	// flannel reduces the MTU of its devices by the overhead over IPv4, whatever the family.
	c.Backend, err = json.Marshal(struct {
		Type           string
		VNI, Port, MTU int
	}{string(b), vni, port, podMTU + vxlanOverhead})
	return c, err
}

func net4(p netip.Prefix) ip.IP4Net {
	return ip.IP4Net{IP: ip.FromIP(p.Addr().AsSlice()), PrefixLen: uint(p.Bits())}
}

func net6(p netip.Prefix) ip.IP6Net {
	return ip.IP6Net{IP: ip.FromIP6(p.Addr().AsSlice()), PrefixLen: uint(p.Bits())}
}
