package network

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/names"
)

// wire has the host count what leaves by eth0: WireGuard's packets, and packets with an address of a pod.
func (h *simHost) wire() {
	h.t.Helper()
	h.run("nft", `add table inet klt_wire
add counter inet klt_wire sealed
add counter inet klt_wire plain
add chain inet klt_wire out { type filter hook postrouting priority 300 ; }
add rule inet klt_wire out oifname eth0 udp dport 51820 counter name sealed
add rule inet klt_wire out oifname eth0 ip daddr 10.42.0.0/16 counter name plain
add rule inet klt_wire out oifname eth0 ip saddr 10.42.0.0/16 counter name plain
add rule inet klt_wire out oifname eth0 ip6 daddr fd42::/56 counter name plain
add rule inet klt_wire out oifname eth0 ip6 saddr fd42::/56 counter name plain`)
}

func (h *simHost) counted(name string) int {
	h.t.Helper()
	fields := strings.Fields(h.run("nft", "list", "counter", "inet", "klt_wire", name))
	for i, f := range fields {
		if f == "packets" {
			n, err := strconv.Atoi(fields[i+1])
			if err != nil {
				h.t.Fatal(err)
			}
			return n
		}
	}
	h.t.Fatalf("no counter in %q", fields)
	return 0
}

// needWireGuard skips the test with a kernel that has no WireGuard.
func needWireGuard(t *testing.T, h *simHost) {
	t.Helper()
	if out, err := exec.Command("nsenter", "--target="+h.pid, "--net", "ip", "link", "add", "probe0", "type", "wireguard").CombinedOutput(); err != nil {
		t.Skipf("the kernel has no WireGuard: %s", out)
	}
	h.ip("link", "del", "probe0")
}

func TestWireGuard(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4", "ipv6")
	a, b := w.hosts["a"], w.hosts["b"]
	needWireGuard(t, a)
	a.wire()
	b.wire()
	both := func() { t.Helper(); w.reach(false); w.reach(true) }
	// same: nothing is created or removed, and the tunnel keeps its key.
	same := func(what string, do func()) {
		t.Run(what, func(t *testing.T) {
			index, routes := strings.Fields(a.ip("-o", "link", "show", names.WireGuardLink))[0], a.ip("route")+a.ip("-6", "route")
			key := w.api.key("a")
			do()
			both()
			if now := strings.Fields(a.ip("-o", "link", "show", names.WireGuardLink))[0]; now != index {
				t.Errorf("another device: %s, was %s", now, index)
			}
			if now := a.ip("route") + a.ip("-6", "route"); now != routes {
				t.Errorf("from\n%s\nto\n%s", routes, now)
			}
			if now := w.api.key("a"); now != key || key == "" {
				t.Errorf("the key changed from %q to %q", key, now)
			}
		})
	}
	a.must("start wireguard")
	b.must("start wireguard")
	both()
	if got := strings.Join(a.links(), " "); got != "eth0 kubelith-wg lo" {
		t.Errorf("interfaces: %s", got)
	}
	if shown := a.ip("-d", "link", "show", names.WireGuardLink); !strings.Contains(shown, "mtu 1420") || !strings.Contains(shown, "alias kubelith") {
		t.Errorf("the device: %s", shown)
	}
	sealed := a.counted("sealed")
	both()
	if now := a.counted("sealed"); now < sealed+100 {
		t.Errorf("%d encrypted packets, then %d", sealed, now)
	}

	same("a stop", func() { a.must("stop") })
	same("a start", func() { a.must("start wireguard") })
	same("the Node without its key", func() {
		n := a.node.DeepCopy()
		n.Annotations = nil
		w.api.set(n)
		eventually(t, "the key to be published again", func() error {
			if w.api.key("a") == "" {
				return errors.New("none")
			}
			return nil
		})
	})
	same("another MTU below and back", func() {
		a.ip("link", "set", "eth0", "mtu", "1400")
		eventually(t, "the device's MTU", func() error {
			if shown := a.ip("link", "show", names.WireGuardLink); !strings.Contains(shown, "mtu 1320") {
				return errors.New(shown)
			}
			return nil
		})
		both()
		a.ip("link", "set", "eth0", "mtu", "1500")
		eventually(t, "the device's MTU", func() error {
			if shown := a.ip("link", "show", names.WireGuardLink); !strings.Contains(shown, "mtu 1420") {
				return errors.New(shown)
			}
			return nil
		})
	})
	same("the device is taken down", func() { a.ip("link", "set", names.WireGuardLink, "down") })
	t.Run("the device is deleted", func(t *testing.T) {
		a.ip("link", "del", names.WireGuardLink)
		both()
	})
	t.Run("a peer comes and goes", func(t *testing.T) {
		c := obj("c", "10.42.2.0/24", "192.0.2.3")
		c.Annotations = map[string]string{names.WireGuardKeyAnnotation: key("c").PublicKey().String()}
		w.api.set(c)
		eventually(t, "a route to it", func() error {
			if now := a.ip("route", "get", "10.42.2.9"); !strings.Contains(now, "dev kubelith-wg") {
				return errors.New(now)
			}
			return nil
		})
		w.api.remove("c")
		eventually(t, "its pods to be refused", func() error {
			if out, err := exec.Command("nsenter", "--target="+a.pid, "--net", "ip", "route", "get", "10.42.2.9").CombinedOutput(); err == nil {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		both()
	})
	t.Run("a stranger claims the key of b", func(t *testing.T) {
		c := obj("c", "10.42.2.0/24", "192.0.2.3")
		c.Annotations = map[string]string{names.WireGuardKeyAnnotation: w.api.key("b")}
		c.CreationTimestamp.Time = c.CreationTimestamp.AddDate(2000, 0, 0) // younger
		w.api.set(c)
		eventually(t, "a word of it", func() error {
			if !strings.Contains(a.said(), "its WireGuard key is that of the older node b") {
				return errors.New("none")
			}
			return nil
		})
		both()
		w.api.remove("c")
	})
	for name, h := range w.hosts {
		if n := h.counted("plain"); n > 0 {
			t.Errorf("%d packets of pods left %s in plain text", n, name)
		}
	}
	t.Run("another backend", func(t *testing.T) {
		for _, backend := range []string{"vxlan", "wireguard", "host-gw", "wireguard", "bridge"} {
			for name, h := range w.hosts {
				h.must("stop")
				h.must("start " + backend)
				eventually(t, name+" to have only what "+backend+" needs", func() error {
					device := strings.Contains(strings.Join(h.links(), " "), names.WireGuardLink)
					refuses := strings.Contains(h.ip("route"), "unreachable 10.42.0.0/16") && strings.Contains(h.ip("-6", "route"), "unreachable fd42::/56")
					addresses := strings.Contains(h.ip("address"), "10.42.0.0/32")
					if want := backend == "wireguard"; device != want || refuses != want || want && name == "a" && !addresses || h.table() != "" != (backend == "vxlan") {
						return fmt.Errorf("%s%s%s%s", h.ip("address"), h.ip("route"), h.ip("-6", "route"), h.table())
					}
					return nil
				})
			}
			if backend != "bridge" {
				both()
			}
		}
	})
	a.must("stop")
	b.must("stop")
}

// TestWireGuardPort: another program has the port.
func TestWireGuardPort(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv6")
	a, b := w.hosts["a"], w.hosts["b"]
	needWireGuard(t, a)
	a.must("occupy " + strconv.Itoa(names.WireGuardPort))
	a.must("start wireguard")
	b.must("start wireguard")
	eventually(t, "a word of it", func() error {
		if !strings.Contains(a.said(), "another program uses the UDP port 51820: stop that program") {
			return errors.New(a.said())
		}
		return nil
	})
	a.must("occupy 0")
	w.reach(true)
	a.must("third-party yes")
	eventually(t, "none of our entries", func() error {
		if got := strings.Join(a.links(), " ") + a.ip("-6", "route"); strings.Contains(got, names.WireGuardLink) || strings.Contains(got, "unreachable") {
			return errors.New(got)
		}
		return nil
	})
	a.must("stop")
	b.must("stop")
}
