package network

import (
	"encoding/json"
	"testing"

	"github.com/flannel-io/flannel/pkg/lease"
)

func TestLeaseOf(t *testing.T) {
	dual := describe(obj("b", "10.42.1.0/24", "192.0.2.2", "fd42:0:0:1::/64", "2001:db8::2"))
	l, err := leaseOf(VXLAN, dual)
	if err != nil {
		t.Fatal(err)
	}
	if !l.EnableIPv4 || !l.EnableIPv6 || l.Subnet.String() != "10.42.1.0/24" || l.IPv6Subnet.String() != "fd42:0:0:1::/64" ||
		l.Attrs.PublicIP.String() != "192.0.2.2" || l.Attrs.PublicIPv6.String() != "2001:db8::2" || l.Attrs.BackendType != "vxlan" {
		t.Errorf("lease %+v", l)
	}
	for f, data := range map[macFamily]json.RawMessage{ipv4: l.Attrs.BackendData, ipv6: l.Attrs.BackendV6Data} {
		var got struct { // as flannel reads it
			VNI     uint32
			VtepMAC string
		}
		if err := json.Unmarshal(data, &got); err != nil || got.VNI != 1 || got.VtepMAC != vtepMAC("b", f).String() {
			t.Errorf("%s: %s, %v", f, data, err)
		}
	}
	for _, parts := range [][]string{{"10.42.2.0/24", "192.0.2.3"}, {"fd42:0:0:2::/64", "2001:db8::3"}} {
		one, err := leaseOf(HostGW, describe(obj("c", parts...)))
		if err != nil || one.EnableIPv4 == one.EnableIPv6 || one.Attrs.BackendType != "host-gw" {
			t.Errorf("%v: %+v, %v", parts, one, err)
		}
		// flannel compares leases of different families, and would panic on one without an IPv6 network at all.
		w := lease.LeaseWatcher{OwnLease: &l}
		if got := w.Update([]lease.Event{{Lease: l}, {Lease: one}, {Lease: one}}); len(got) != 2 {
			t.Errorf("%v: %d events", parts, len(got))
		}
	}
}

func TestConfigOf(t *testing.T) {
	cluster := prefixes("10.42.0.0/16", "fd42::/56")
	dual := describe(obj("a", "10.42.0.0/24", "192.0.2.1", "fd42::/64", "2001:db8::1"))
	c, err := configOf(VXLAN, dual, cluster, 1430)
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ VNI, Port, MTU int }
	if err := json.Unmarshal(c.Backend, &got); err != nil || got.VNI != 1 || got.Port != 8472 || got.MTU-50 != 1430 {
		t.Errorf("backend %s, %v", c.Backend, err)
	}
	if !c.EnableIPv4 || !c.EnableIPv6 || c.Network.String() != "10.42.0.0/16" || c.IPv6Network.String() != "fd42::/56" {
		t.Errorf("config %+v", c)
	}
	if _, err := configOf(VXLAN, dual, cluster[:1], 1430); err == nil {
		t.Error("a family that the cluster has not is no error")
	}
}
