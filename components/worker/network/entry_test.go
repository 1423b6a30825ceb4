package network

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
)

func setupOf(b Backend, parts ...string) setup {
	return setup{b, describe(obj("own", parts...)), parent{index: 2, mtu: 1500, name: "eth0"}}
}

func texts(entries []entry) (out []string) {
	for _, e := range entries {
		out = append(out, e.String())
	}
	slices.Sort(out)
	return out
}

func TestEntriesOf(t *testing.T) {
	own := []string{"10.42.0.0/24", "192.0.2.1", "fd42::/64", "2001:db8::1"}
	peer := describe(obj("b", "10.42.1.0/24", "192.0.2.2", "fd42:0:0:1::/64", "2001:db8::2"))
	four, six := vtepMAC("b", ipv4).String(), vtepMAC("b", ipv6).String()
	links := map[string]int{"flannel.1": 7, "flannel-v6.1": 8}
	for backend, want := range map[Backend][]string{
		VXLAN: {
			"fdb " + four + " at 192.0.2.2", "fdb " + six + " at 2001:db8::2",
			"neighbour " + four + " at 10.42.1.0", "neighbour " + six + " at fd42:0:0:1::",
			"route to 10.42.1.0/24 via 10.42.1.0", "route to fd42:0:0:1::/64 via fd42:0:0:1::",
		},
		HostGW: {"route to 10.42.1.0/24 via 192.0.2.2", "route to fd42:0:0:1::/64 via 2001:db8::2"},
	} {
		entries := setupOf(backend, own...).entriesOf(peer, links)
		got := texts(entries)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %q, want %q", backend, got, want)
		}
		for _, e := range entries {
			link := map[bool]int{true: 7, false: 8}[e.via.Is4() || e.mac == four]
			if backend == HostGW {
				link = 2
			}
			if e.link != link {
				t.Errorf("%s: %s is on the link %d, want %d", backend, e, e.link, link)
			}
		}
	}
}

// The kernel of a node as it may be found: entries for a peer, those that an earlier run left, and those of others.
func TestDifference(t *testing.T) {
	network := func(text string) *net.IPNet {
		_, n, err := net.ParseCIDR(text)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	mac := func(name string) net.HardwareAddr { return vtepMAC(name, ipv4) }
	route := func(dst, via string, link int, protocol netlink.RouteProtocol) netlink.Route {
		return netlink.Route{Dst: network(dst), Gw: net.ParseIP(via), LinkIndex: link, Protocol: protocol}
	}
	fdb := func(name, at string) netlink.Neigh {
		return netlink.Neigh{LinkIndex: 7, Family: unix.AF_BRIDGE, State: netlink.NUD_PERMANENT, IP: net.ParseIP(at), HardwareAddr: mac(name)}
	}
	arp := func(name, at string) netlink.Neigh {
		return netlink.Neigh{LinkIndex: 7, Family: unix.AF_INET, State: netlink.NUD_PERMANENT, IP: net.ParseIP(at), HardwareAddr: mac(name)}
	}
	learnt := arp("x", "10.42.0.9")
	learnt.State = netlink.NUD_REACHABLE
	k := kernel{}
	cluster := prefixes("10.42.0.0/16")
	devices := map[int]bool{7: true}
	for _, r := range []netlink.Route{
		route("10.42.1.0/24", "10.42.1.0", 7, unix.RTPROT_BOOT),       // b
		route("10.42.8.0/24", "10.42.8.0", 7, unix.RTPROT_BOOT),       // a node that is gone
		route("10.42.9.0/24", "192.0.2.9", 2, names.RouteProtocol),    // of host-gw before
		route("10.42.5.0/24", "192.0.2.5", 2, unix.RTPROT_BOOT),       // another program's, in our network
		route("198.51.100.0/24", "192.0.2.5", 2, names.RouteProtocol), // ours, of a cluster CIDR before
		route("198.51.101.0/24", "192.0.2.5", 2, unix.RTPROT_STATIC),
		{Dst: network("10.42.0.0/24"), LinkIndex: 5, Protocol: unix.RTPROT_KERNEL}, // cni0's
		{Gw: net.ParseIP("192.0.2.254"), LinkIndex: 2},
	} {
		k.addRoute(r, cluster, devices)
	}
	for _, n := range []netlink.Neigh{
		arp("b", "10.42.1.0"), fdb("b", "192.0.2.2"),
		arp("gone", "10.42.8.0"), fdb("gone", "192.0.2.8"), fdb("b", "192.0.2.77"), // b had another address
		learnt, {LinkIndex: 7, Family: unix.AF_INET6, State: netlink.NUD_NOARP, IP: net.ParseIP("ff02::16")},
		arp("c", "10.42.2.0"), // c lacks the rest
	} {
		k.addNeighbour(n)
	}
	s := setupOf(VXLAN, "10.42.0.0/24", "192.0.2.1")
	needs := map[string][]entry{}
	for _, p := range []node{describe(obj("b", "10.42.1.0/24", "192.0.2.2")), describe(obj("c", "10.42.2.0/24", "192.0.2.3"))} {
		needs[p.name] = s.entriesOf(p, map[string]int{"flannel.1": 7})
	}
	incomplete, stale := k.difference(needs)
	if !maps.Equal(incomplete, map[string]bool{"c": true}) {
		t.Errorf("incomplete: %v", incomplete)
	}
	want := []string{
		"fdb " + mac("b").String() + " at 192.0.2.77", "fdb " + mac("gone").String() + " at 192.0.2.8", "neighbour " + mac("gone").String() + " at 10.42.8.0",
		"route to 10.42.8.0/24 via 10.42.8.0", "route to 10.42.9.0/24 via 192.0.2.9", "route to 198.51.100.0/24 via 192.0.2.5",
	}
	slices.Sort(want)
	if got := texts(stale); !slices.Equal(got, want) {
		t.Errorf("stale:\n%q\nwant\n%q", got, want)
	}
	// host-gw accepts a route that another program created.
	h := setupOf(HostGW, "10.42.0.0/24", "192.0.2.1")
	five := describe(obj("five", "10.42.5.0/24", "192.0.2.5"))
	if incomplete, _ := k.difference(map[string][]entry{"five": h.entriesOf(five, nil)}); len(incomplete) != 0 {
		t.Error("a route of another hand does not count")
	}
}

func TestGone(t *testing.T) {
	for _, err := range []error{nil, unix.ESRCH, unix.ENOENT, unix.ENODEV} {
		if gone(err) != nil {
			t.Errorf("%v is an error", err)
		}
	}
	if !errors.Is(gone(unix.EPERM), unix.EPERM) {
		t.Error("EPERM is none")
	}
}

func TestDiffers(t *testing.T) {
	d := device{"flannel.1", vxlanKind, vtepMAC("own", ipv4), 1450, 2, netip.MustParseAddr("192.0.2.1")}
	good := func() *netlink.Vxlan {
		return &netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Name: "flannel.1", MTU: 1450, HardwareAddr: vtepMAC("own", ipv4)},
			VxlanId: 1, Port: 8472, VtepDevIndex: 2, SrcAddr: net.ParseIP("192.0.2.1")}
	}
	if why := d.differs(good()); why != "" {
		t.Errorf("a good device: %s", why)
	}
	for want, change := range map[string]func(*netlink.Vxlan){
		"MTU 1400":          func(v *netlink.Vxlan) { v.MTU = 1400 },
		"VNI 2":             func(v *netlink.Vxlan) { v.VxlanId = 2 },
		"port 4789":         func(v *netlink.Vxlan) { v.Port = 4789 },
		"interface below 3": func(v *netlink.Vxlan) { v.VtepDevIndex = 3 },
		"source 192.0.2.7":  func(v *netlink.Vxlan) { v.SrcAddr = net.ParseIP("192.0.2.7") },
		"source <nil>":      func(v *netlink.Vxlan) { v.SrcAddr = nil },
		"MAC address " + vtepMAC("other", ipv4).String(): func(v *netlink.Vxlan) { v.HardwareAddr = vtepMAC("other", ipv4) },
		"learning": func(v *netlink.Vxlan) { v.Learning = true },
	} {
		v := good()
		change(v)
		if got := d.differs(v); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	for _, d := range []device{d, {name: names.WireGuardLink, kind: wireGuardKind}} {
		if got := d.differs(&netlink.Dummy{}); got != "kind dummy" {
			t.Errorf("%s is a dummy: %q", d.name, got)
		}
	}
	// What differs otherwise is changed while packets pass.
	w := device{name: names.WireGuardLink, kind: wireGuardKind, mtu: 1440}
	if why := w.differs(&netlink.Wireguard{LinkAttrs: netlink.LinkAttrs{MTU: 1400}}); why != "" {
		t.Errorf("WireGuard with another MTU: %s", why)
	}
}

func TestOwnDevice(t *testing.T) {
	for name, c := range map[string]struct {
		link netlink.Link
		want bool
	}{
		"marked":           {&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Alias: names.LinkAlias}}, true},
		"not yet marked":   {&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{HardwareAddr: vtepMAC("own", ipv6)}}, true},
		"of another":       {&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{HardwareAddr: vtepMAC("other", ipv4)}}, false},
		"of another alias": {&netlink.Vxlan{LinkAttrs: netlink.LinkAttrs{Alias: "x"}}, false},
	} {
		if got := ownDevice(c.link, "own"); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
