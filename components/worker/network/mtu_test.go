package network

import (
	"strings"
	"testing"
)

func TestPodMTU(t *testing.T) {
	for _, c := range []struct {
		backend Backend
		link    int
		ipv6    bool
		want    int
	}{
		{VXLAN, 1500, false, 1450},
		{VXLAN, 1500, true, 1430},
		{VXLAN, 9001, false, 8951},
		{VXLAN, 9001, true, 8931},
		{VXLAN, 1280, false, 1230},
		{WireGuard, 1500, false, 1440},
		{WireGuard, 1500, true, 1420},
		{HostGW, 1500, false, 1500},
		{HostGW, 9000, true, 9000},
		{"bridge", 1500, true, 1500},
		{"none", 1400, false, 1400},
		{VXLAN, 0, false, 0},
		{HostGW, 0, true, 0},
	} {
		if got := PodMTU(c.backend, c.link, c.ipv6); got != c.want {
			t.Errorf("%s over %d, IPv6 %t: %d, want %d", c.backend, c.link, c.ipv6, got, c.want)
		}
	}
}

// The smallest interface that is accepted is the one that the error names.
func TestSmallestMTU(t *testing.T) {
	for _, c := range []struct {
		backend Backend
		ipv6    bool
		least   int
		text    string
	}{
		{VXLAN, false, 626, "at least 626"},
		{VXLAN, true, 1350, "at least 1350"},
		{WireGuard, false, 636, "at least 636"},
		{WireGuard, true, 1360, "at least 1360"},
		{HostGW, true, 1280, "at least 1280"},
	} {
		if err := checkMTU(c.backend, parent{name: "eth0", mtu: c.least}, c.ipv6); err != nil {
			t.Errorf("%s, IPv6 %t, MTU %d: %v", c.backend, c.ipv6, c.least, err)
		}
		err := checkMTU(c.backend, parent{name: "eth0", mtu: c.least - 1}, c.ipv6)
		if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "eth0") {
			t.Errorf("%s, IPv6 %t, MTU %d: %v", c.backend, c.ipv6, c.least-1, err)
		}
	}
}
