package network

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"kubelith.io/kubelith/base/names"
)

// key is a private key for tests, always the same of a name. The lowest bits of one do not count.
func key(name string) (k wgtypes.Key) {
	copy(k[1:], name)
	return k
}

// keyed is a Node with the public key.
func keyed(public wgtypes.Key, name string, parts ...string) node {
	n := obj(name, parts...)
	n.Annotations = map[string]string{names.WireGuardKeyAnnotation: public.String()}
	return describe(n)
}

// shown is the configuration in words: "key; port; -REMOVED; +PEER at ENDPOINT with CIDR,CIDR".
func shown(c wgtypes.Config, peers map[wgtypes.Key]string) string {
	var out []string
	if c.PrivateKey != nil {
		out = append(out, "key")
	}
	if c.ListenPort != nil {
		out = append(out, "port")
	}
	for _, p := range c.Peers {
		if p.Remove {
			out = append(out, "-"+peers[p.PublicKey])
			continue
		}
		text := "+" + peers[p.PublicKey]
		if p.Endpoint != nil {
			text += " at " + p.Endpoint.String()
		}
		if p.ReplaceAllowedIPs {
			var cidrs []string
			for _, n := range p.AllowedIPs {
				cidrs = append(cidrs, n.String())
			}
			text += " with " + strings.Join(cidrs, ",")
		}
		out = append(out, text)
	}
	return strings.Join(out, "; ")
}

// How a device is configured, by the state in which it may be found.
func TestTunnelChanges(t *testing.T) {
	own, b, c := key("own"), key("b").PublicKey(), key("c").PublicKey()
	called := map[wgtypes.Key]string{b: "b", c: "c"}
	nodeB := keyed(b, "b", "10.42.1.0/24", "192.0.2.2", "fd42:0:0:1::/64", "2001:db8::2")
	nodeC := keyed(c, "c", "fd42:0:0:2::/64", "2001:db8::3")
	peer := func(public wgtypes.Key, endpoint string, cidrs ...string) wgtypes.Peer {
		p := wgtypes.Peer{PublicKey: public}
		if endpoint != "" {
			p.Endpoint = net.UDPAddrFromAddrPort(netip.MustParseAddrPort(endpoint))
		}
		for _, text := range cidrs {
			p.AllowedIPs = append(p.AllowedIPs, *ipNet(netip.MustParsePrefix(text)))
		}
		return p
	}
	fullB := peer(b, "192.0.2.2:51820", "10.42.1.0/24", "fd42:0:0:1::/64")
	fullC := peer(c, "[2001:db8::3]:51820", "fd42:0:0:2::/64")
	device := func(peers ...wgtypes.Peer) *wgtypes.Device {
		return &wgtypes.Device{PrivateKey: own, ListenPort: 51820, Peers: peers}
	}
	for name, test := range map[string]struct {
		now   *wgtypes.Device
		peers []node
		told  map[wgtypes.Key]string
		want  string
	}{
		"new": {&wgtypes.Device{}, []node{nodeB, nodeC}, nil,
			"key; port; +b at 192.0.2.2:51820 with 10.42.1.0/24,fd42:0:0:1::/64; +c at [2001:db8::3]:51820 with fd42:0:0:2::/64"},
		"of an earlier run":        {device(fullC, fullB), []node{nodeB, nodeC}, nil, ""},
		"another order of CIDRs":   {device(peer(b, "192.0.2.2:51820", "fd42:0:0:1::/64", "10.42.1.0/24")), []node{nodeB}, nil, ""},
		"another of our keys":      {&wgtypes.Device{PrivateKey: b, ListenPort: 51820, Peers: []wgtypes.Peer{fullB}}, []node{nodeB}, nil, "key"},
		"another port":             {&wgtypes.Device{PrivateKey: own, ListenPort: 7, Peers: []wgtypes.Peer{fullB}}, []node{nodeB}, nil, "port"},
		"a node left":              {device(fullB, fullC), []node{nodeB}, nil, "-c"},
		"a node has another key":   {device(peer(c, "192.0.2.2:51820", "10.42.1.0/24", "fd42:0:0:1::/64")), []node{nodeB}, nil, "-c; +b at 192.0.2.2:51820 with 10.42.1.0/24,fd42:0:0:1::/64"},
		"too many addresses":       {device(peer(b, "192.0.2.2:51820", "10.42.1.0/24", "fd42:0:0:1::/64", "10.42.2.0/24")), []node{nodeB}, nil, "+b with 10.42.1.0/24,fd42:0:0:1::/64"},
		"no endpoint":              {device(peer(b, "", "10.42.1.0/24", "fd42:0:0:1::/64")), []node{nodeB}, map[wgtypes.Key]string{b: "192.0.2.2:51820"}, "+b at 192.0.2.2:51820"},
		"moved, as its Node says":  {device(peer(b, "192.0.2.9:51820", "10.42.1.0/24", "fd42:0:0:1::/64")), []node{nodeB}, map[wgtypes.Key]string{b: "192.0.2.9:51820"}, "+b at 192.0.2.2:51820"},
		"seen from behind NAT":     {device(peer(b, "203.0.113.1:4000", "10.42.1.0/24", "fd42:0:0:1::/64")), []node{nodeB}, map[wgtypes.Key]string{b: "192.0.2.2:51820"}, ""},
		"a node without a key":     {device(fullB), []node{nodeB, describe(obj("c", "10.42.2.0/24", "192.0.2.3"))}, nil, ""},
		"its key becomes unusable": {device(fullB), []node{describe(obj("b", "10.42.1.0/24", "192.0.2.2"))}, nil, "-b"},
	} {
		t.Run(name, func(t *testing.T) {
			told := map[wgtypes.Key]netip.AddrPort{}
			for k, v := range test.told {
				told[k] = netip.MustParseAddrPort(v)
			}
			got, differs := (&tunnel{key: own, told: told}).changes(test.now, test.peers)
			if text := shown(got, called); text != test.want || differs != (test.want != "") {
				t.Errorf("got  %s (%t)\nwant %s", text, differs, test.want)
			}
		})
	}
}

// No node takes the tunnel of another by claiming its key.
func TestWithKeys(t *testing.T) {
	own := key("own")
	list := []node{
		keyed(key("b").PublicKey(), "b", "10.42.1.0/24", "192.0.2.2"),
		keyed(key("b").PublicKey(), "thief", "10.42.2.0/24", "192.0.2.3"),
		keyed(own.PublicKey(), "mirror", "10.42.3.0/24", "192.0.2.4"),
		keyed(wgtypes.Key{}, "zero", "10.42.4.0/24", "192.0.2.5"),
		describe(obj("none", "10.42.5.0/24", "192.0.2.6")),
	}
	refused := map[string]string{}
	got := (&tunnel{key: own}).withKeys(list, refused)
	if len(got) != len(list) || got[0].key != key("b").PublicKey() {
		t.Errorf("%+v", got)
	}
	for i, n := range got[1:] {
		if n.key != (wgtypes.Key{}) {
			t.Errorf("%s has a key", list[i+1].name)
		}
	}
	want := map[string]string{"thief": "its WireGuard key is that of the older node b", "mirror": "its WireGuard key is that of this node",
		"zero": "it has not published a WireGuard key", "none": "it has not published a WireGuard key"}
	for name, why := range want {
		if refused[name] != why {
			t.Errorf("%s: %q", name, refused[name])
		}
	}
	if len(refused) != len(want) {
		t.Errorf("refused: %v", refused)
	}
}

func TestDescribeKey(t *testing.T) {
	public := key("b").PublicKey()
	n := obj("b", "10.42.1.0/24", "192.0.2.2")
	for text, want := range map[string]wgtypes.Key{public.String(): public, "": {}, "x": {}, public.String() + "A": {}, public.String()[:40]: {}} {
		n.Annotations = map[string]string{names.WireGuardKeyAnnotation: text, "example.org/x": "y"}
		if got := describe(n).key; got != want {
			t.Errorf("%q: %s", text, got)
		}
		trimmed, err := trim(n)
		if err != nil {
			t.Fatal(err)
		}
		if got := trimmed.(interface{ GetAnnotations() map[string]string }).GetAnnotations(); len(got) != 1 || got[names.WireGuardKeyAnnotation] != text {
			t.Errorf("the informer keeps %v", got)
		}
	}
}

func TestKeyOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "agent", "wireguard.key")
	first, err := keyOf(file)
	if err != nil || first == (wgtypes.Key{}) {
		t.Fatalf("%s, %v", first, err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	if again, err := keyOf(file); err != nil || again != first {
		t.Errorf("then %s, %v", again, err)
	}
	for _, text := range []string{"", "x", first.String()[:30]} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := keyOf(file); err == nil || !strings.Contains(err.Error(), file+" is damaged: remove the file") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What WireGuard needs in the kernel beside its peers: routes to the device, and refusals.
func TestTunnelEntries(t *testing.T) {
	s := setupOf(WireGuard, "10.42.0.0/24", "192.0.2.1")
	cluster := prefixes("10.42.0.0/16", "fd42::/56")
	entries := append(s.entriesOf(describe(obj("b", "10.42.1.0/24", "192.0.2.2")), map[string]int{names.WireGuardLink: 7}), s.refusals(cluster)...)
	want := []string{"route that refuses 10.42.0.0/16", "route to 10.42.1.0/24"}
	if got := texts(entries); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
