package network

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/names"
)

func TestVXLAN(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4")
	a, b := w.hosts["a"], w.hosts["b"]
	a.must("start vxlan")
	b.must("start vxlan")
	w.reach(false)
	if got := strings.Join(a.links(), " "); got != "eth0 flannel.1 lo" {
		t.Errorf("interfaces: %s", got)
	}
	if shown := a.ip("-d", "link", "show", "flannel.1"); !strings.Contains(shown, "mtu 1450") || !strings.Contains(shown, "alias kubelith") ||
		!strings.Contains(shown, vtepMAC("a", ipv4).String()) || !strings.Contains(shown, "nolearning") {
		t.Errorf("the device: %s", shown)
	}
	before := a.packets("flannel.1")
	w.reach(false)
	if now := a.packets("flannel.1"); now < before+10 {
		t.Errorf("the device sent %d packets, then %d", before, now)
	}

	t.Run("a restart keeps everything", func(t *testing.T) {
		was, device := a.entries(), a.ip("-o", "link", "show", "flannel.1")
		a.must("stop")
		w.reach(false)
		a.must("start vxlan")
		w.reach(false)
		if now := a.entries(); now != was {
			t.Errorf("from\n%s\nto\n%s", was, now)
		}
		if now := a.ip("-o", "link", "show", "flannel.1"); strings.Fields(now)[0] != strings.Fields(device)[0] {
			t.Errorf("another device: %s, was %s", now, device)
		}
	})
	t.Run("the device is deleted", func(t *testing.T) {
		for range 5 {
			a.ip("link", "del", "flannel.1")
			w.reach(false)
			eventually(t, "the mark", func() error {
				if shown := a.ip("link"); !strings.Contains(shown, "flannel.1:") || !strings.Contains(shown, "alias kubelith") {
					return errors.New(shown)
				}
				return nil
			})
		}
		if strings.Contains(a.said(), "recreated successfully") {
			t.Error("flannel created the device again itself, which races with what it does for peers")
		}
	})
	t.Run("the device is taken down", func(t *testing.T) {
		a.ip("link", "set", "flannel.1", "down")
		w.reach(false)
	})
	t.Run("the interface below gets another MTU", func(t *testing.T) {
		a.ip("link", "set", "eth0", "mtu", "1400")
		eventually(t, "the device's MTU", func() error {
			if shown := a.ip("link"); !strings.Contains(shown, "flannel.1: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1350") {
				return errors.New(shown)
			}
			return nil
		})
		w.reach(false)
	})
	t.Run("the peer has another address", func(t *testing.T) {
		b.must("stop")
		b.ip("addr", "add", "192.0.2.7/24", "dev", "eth0")
		moved := obj("b", "10.42.1.0/24", "192.0.2.7")
		w.api.set(moved)
		eventually(t, "the new address, and not the old one", func() error {
			if fdb := a.run("bridge", "fdb", "show", "dev", "flannel.1"); !strings.Contains(fdb, "dst 192.0.2.7") || strings.Contains(fdb, "dst 192.0.2.2 ") {
				return errors.New(fdb)
			}
			return nil
		})
		w.api.set(b.node)
		b.must("start vxlan")
		eventually(t, "the old address again", func() error {
			if fdb := a.run("bridge", "fdb", "show", "dev", "flannel.1"); strings.Contains(fdb, "dst 192.0.2.7") {
				return errors.New(fdb)
			}
			return nil
		})
		w.reach(false)
	})
	t.Run("a peer comes and goes", func(t *testing.T) {
		was := a.entries()
		w.api.set(obj("c", "10.42.2.0/24", "192.0.2.3"))
		eventually(t, "the route to it", func() error {
			if now := a.entries(); strings.Count(now, "10.42.2.0") < 2 || !strings.Contains(now, "dst 192.0.2.3 ") {
				return errors.New(now)
			}
			return nil
		})
		w.api.remove("c")
		eventually(t, "nothing of it", func() error {
			if now := a.entries(); now != was {
				return errors.New(now)
			}
			return nil
		})
	})
	t.Run("our Node is deleted and comes back", func(t *testing.T) {
		w.api.remove("a")
		eventually(t, "b to forget it", func() error {
			if now := b.entries(); now != "" {
				return errors.New(now)
			}
			return nil
		})
		if now := a.entries(); now == "" {
			t.Error("the node itself forgot its peers")
		}
		w.api.set(a.node)
		w.reach(false)
	})
	t.Run("another program's route stays", func(t *testing.T) {
		a.ip("route", "add", "10.42.200.0/24", "via", "192.0.2.2")
		a.ip("route", "add", "198.51.100.0/24", "via", "192.0.2.2")
		a.must("stop")
		a.must("start vxlan")
		w.reach(false)
		a.must("stop")
		a.must("start bridge")
		if got := a.entries(); strings.Count(got, "\n") != 2 || strings.Contains(got, "flannel") {
			t.Errorf("left: %s", got)
		}
		a.ip("route", "del", "10.42.200.0/24")
		a.ip("route", "del", "198.51.100.0/24")
		a.must("stop")
	})
}

// TestChangeOfBackend: after any change nothing is left of the backend before.
func TestChangeOfBackend(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4", "ipv6")
	a, b := w.hosts["a"], w.hosts["b"]
	for _, backend := range []string{"vxlan", "host-gw", "vxlan", "none", "host-gw", "bridge"} {
		a.must("start " + backend)
		b.must("start " + backend)
		devices, routes := "", 0
		switch backend {
		case "vxlan":
			devices = "flannel-v6.1 flannel.1 "
		case "host-gw":
			routes = 1
		}
		for name, h := range w.hosts {
			eventually(t, "only what "+backend+" needs", func() error {
				if got := strings.Join(h.links(), " "); got != "eth0 "+devices+"lo" {
					return fmt.Errorf("%s has the interfaces %s", name, got)
				}
				if shown := h.ip("link"); strings.Count(shown, "mtu 1430") != strings.Count(devices, " ") {
					return fmt.Errorf("%s: %s", name, shown)
				}
				for _, family := range []string{"-4", "-6"} {
					if shown := h.ip(family, "route", "show", "proto", strconv.Itoa(names.RouteProtocol)); strings.Count(shown, " via ") != routes {
						return fmt.Errorf("%s: routes %s", name, shown)
					}
				}
				if entries := h.entries(); (devices == "" && routes == 0) != (entries == "") {
					return fmt.Errorf("%s has %q", name, entries)
				}
				return nil
			})
		}
		if backend == "vxlan" || backend == "host-gw" {
			w.reach(false)
			w.reach(true)
		}
		a.must("stop")
		b.must("stop")
	}
}

func TestHostGW(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4")
	a, b := w.hosts["a"], w.hosts["b"]
	a.must("start host-gw")
	b.must("start host-gw")
	w.reach(false)
	t.Run("a lost route is made again", func(t *testing.T) {
		a.ip("route", "flush", "proto", strconv.Itoa(names.RouteProtocol))
		w.reach(false)
	})
	t.Run("a node behind a router is left out", func(t *testing.T) {
		a.ip("route", "add", "198.51.100.0/24", "via", "192.0.2.2")
		w.api.set(obj("far", "10.42.3.0/24", "198.51.100.1"))
		w.api.set(obj("near", "10.42.4.0/24", "192.0.2.4"))
		eventually(t, "the near one", func() error {
			if now := a.entries(); !strings.Contains(now, "10.42.4.0/24 via 192.0.2.4") {
				return errors.New(now)
			}
			return nil
		})
		if now := a.entries(); strings.Contains(now, "10.42.3.0") {
			t.Errorf("a route to the far one: %s", now)
		}
		w.api.remove("far")
		w.api.remove("near")
		a.ip("route", "del", "198.51.100.0/24")
	})
	t.Run("a third party's network", func(t *testing.T) {
		a.must("third-party yes")
		eventually(t, "none of our entries", func() error {
			if now := a.entries(); now != "" {
				return errors.New(now)
			}
			return nil
		})
		a.must("third-party no")
		w.reach(false)
	})
	a.must("stop")
	b.must("stop")
}

// TestIPv6Only: flannel's own watch of its device does not work here.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv6")
	a, b := w.hosts["a"], w.hosts["b"]
	a.must("start vxlan")
	b.must("start vxlan")
	w.reach(true)
	if got := strings.Join(a.links(), " "); got != "eth0 flannel-v6.1 lo" {
		t.Errorf("interfaces: %s", got)
	}
	a.ip("link", "del", "flannel-v6.1")
	w.reach(true)
	a.must("third-party yes")
	eventually(t, "none of our entries", func() error {
		if got := strings.Join(a.links(), " "); got != "eth0 lo" {
			return errors.New(got)
		}
		return nil
	})
	a.must("stop")
	b.must("stop")
}

// TestForeignDevice: another flannel's interface stays, and ours comes when it has gone.
func TestForeignDevice(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4")
	a, b := w.hosts["a"], w.hosts["b"]
	a.ip("link", "add", "flannel.1", "type", "vxlan", "id", "1", "dstport", "8472", "dev", "eth0")
	theirs := a.ip("-o", "link", "show", "flannel.1")
	a.must("start vxlan")
	b.must("start vxlan")
	eventually(t, "b to begin", func() error {
		if now := b.entries(); now == "" {
			return errors.New("nothing yet")
		}
		return nil
	})
	if now := a.ip("-o", "link", "show", "flannel.1"); now != theirs {
		t.Errorf("the foreign device became %s", now)
	}
	a.ip("link", "del", "flannel.1")
	w.reach(false)
	a.must("stop")
	b.must("stop")
}
