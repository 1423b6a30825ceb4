package network

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// table is the packet filter of VXLAN, or "".
func (h *simHost) table() string {
	h.t.Helper()
	out, err := exec.Command("nsenter", "--target="+h.pid, "--net", "nft", "list", "table", "inet", "kubelith_vxlan").Output()
	if err != nil {
		return ""
	}
	return string(out)
}

// smuggle has the host send VXLAN packets with the byte say to the pod of a, three times.
func (h *simHost) smuggle(source, target string, device macFamily, say string) {
	h.t.Helper()
	for range 3 {
		h.must(strings.Join([]string{"smuggle", source, target, vtepMAC("a", device).String(), "10.42.1.9", "10.42.0.9", say}, " "))
	}
}

// hears waits until the pod of the host has received these, in any order, and nothing else.
func (h *simHost) hears(when, want string) {
	h.t.Helper()
	var got string
	eventually(h.t, when, func() error {
		said, err := h.do("heard")
		if got += said; err != nil || len(got) < len(want) {
			return fmt.Errorf("%q arrived, not %q: %w", got, want, err)
		}
		return nil
	})
	letters := []byte(got)
	slices.Sort(letters)
	if string(letters) != want {
		h.t.Errorf("%s: %q arrived, not %q", when, letters, want)
	}
}

// TestForeignPackets: VXLAN packets are taken from addresses of nodes, also while the process is dead.
func TestForeignPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4", "ipv6")
	a, b := w.hosts["a"], w.hosts["b"]
	b.ip("addr", "add", "192.0.2.66/24", "dev", "eth0")
	b.ip("addr", "add", "2001:db8::66/64", "dev", "eth0", "nodad")
	a.must("start vxlan")
	b.must("start vxlan")
	w.reach(false)
	w.reach(true)
	families := []struct {
		device                        macFamily
		target, node, foreign, moveTo string
	}{
		{ipv4, "192.0.2.1", "192.0.2.2", "192.0.2.66", "192.0.2.7"},
		{ipv6, "2001:db8::1", "2001:db8::2", "2001:db8::66", "2001:db8::7"},
	}
	check := func(when string) {
		t.Helper()
		for _, f := range families {
			b.smuggle(f.foreign, f.target, f.device, "F")
			b.smuggle(f.node, f.target, f.device, "N")
			a.hears(fmt.Sprintf("%s: packets from %s and %s", when, f.foreign, f.node), "NNN")
		}
	}
	guarded := func(address string) {
		t.Helper()
		eventually(t, "the packet filter to let in "+address, func() error {
			if table := a.table(); !strings.Contains(table, address) {
				return errors.New(table)
			}
			return nil
		})
	}
	check("at first")
	a.must("stop")
	check("without the process")
	a.run("nft", "delete", "table", "inet", "kubelith_vxlan")
	for _, f := range families {
		b.smuggle(f.foreign, f.target, f.device, "F")
		a.hears("without the packet filter", "FFF")
	}
	a.must("start vxlan")
	guarded("192.0.2.2")
	check("after a restart")
	for _, change := range []string{"delete table inet kubelith_vxlan", "flush chain inet kubelith_vxlan input", "add element inet kubelith_vxlan nodes-ip { 192.0.2.66 }"} {
		a.run("nft", change)
		w.api.set(obj("c", "10.42.2.0/24", "192.0.2.3")) // before the half minute is over
		guarded("192.0.2.3")
		check("after " + change)
		w.api.remove("c")
		eventually(t, "nothing of c", func() error {
			if table := a.table(); strings.Contains(table, "192.0.2.3") {
				return errors.New(table)
			}
			return nil
		})
	}
	// The node moves: its old address is as foreign as any.
	moved := b.node.DeepCopy()
	for i, f := range families {
		bits := map[macFamily]string{ipv4: "/24", ipv6: "/64"}[f.device]
		b.ip("addr", "add", f.moveTo+bits, "dev", "eth0", "nodad")
		moved.Status.Addresses[i].Address = f.moveTo
		families[i].node, families[i].foreign = f.moveTo, f.node
	}
	w.api.set(moved)
	guarded("2001:db8::7")
	check("after the move")
	a.must("stop")
	b.must("stop")
}

// TestForwardedPackets: a pod cannot hide behind the address of its node.
func TestForwardedPackets(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4")
	a, b := w.hosts["a"], w.hosts["b"]
	pod := startHost(t, hostSpec{Name: "pod"})
	b.ip("link", "add", "cni0", "type", "veth", "peer", "name", "eth0", "netns", pod.pid)
	for _, c := range []struct {
		host          *simHost
		link, address string
	}{{b, "cni0", "10.42.1.1/24"}, {pod, "eth0", "10.42.1.5/24"}} {
		c.host.ip("addr", "add", c.address, "dev", c.link)
		c.host.ip("link", "set", c.link, "up")
	}
	pod.ip("route", "add", "default", "via", "10.42.1.1")
	b.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
	b.run("nft", `add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; add rule ip nat post oifname "eth0" masquerade`)
	a.must("start vxlan")
	b.must("start vxlan")
	w.reach(false)
	pod.smuggle("10.42.1.5", "192.0.2.1", ipv4, "F")
	b.smuggle("192.0.2.2", "192.0.2.1", ipv4, "N")
	a.hears("packets of a pod and its node", "NNN")
	b.must("stop")
	b.run("nft", "delete", "table", "inet", "kubelith_vxlan")
	pod.smuggle("10.42.1.5", "192.0.2.1", ipv4, "F")
	a.hears("packets of a pod without the packet filter", "FFF")
	a.must("stop")
}

// TestAlone: without another node there is neither device nor packet filter, and without the filter no device.
func TestAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "ipv4")
	a, b := w.hosts["a"], w.hosts["b"]
	nothing := func() error {
		if got := strings.Join(a.links(), " "); got != "eth0 lo" {
			return fmt.Errorf("interfaces %s", got)
		}
		if table := a.table(); table != "" {
			return fmt.Errorf("packet filter %s", table)
		}
		if entries := a.entries(); entries != "" { // ip may fail on a device that is being removed
			return fmt.Errorf("entries %s", entries)
		}
		return nil
	}
	w.api.remove("b")
	w.api.set(obj("same", "10.42.3.0/24", "192.0.2.1")) // reports a's own address
	a.must("start vxlan")
	eventually(t, "a to see that Node", func() error {
		if said := a.said(); !strings.Contains(said, "is this node's") {
			return errors.New(said)
		}
		return nil
	})
	if err := nothing(); err != nil {
		t.Error(err)
	}
	w.api.remove("same")
	b.must("start vxlan")
	for range 3 { // a Node may go and come back
		w.api.set(b.node)
		w.reach(false)
		w.api.remove("b")
		eventually(t, "nothing", nothing)
	}
	a.must("stop")
	a.run("nft", "add table inet kubelith_vxlan; add set inet kubelith_vxlan nodes-ip { type ipv6_addr; }")
	w.api.set(b.node)
	a.must("start vxlan")
	eventually(t, "the error", func() error {
		if said := a.said(); !strings.Contains(said, "write the packet filter of VXLAN") {
			return errors.New(said)
		}
		return nil
	})
	if got := strings.Join(a.links(), " "); got != "eth0 lo" {
		t.Errorf("interfaces without a packet filter: %s", got)
	}
	a.run("nft", "delete", "table", "inet", "kubelith_vxlan")
	w.reach(false)
	a.must("stop")
	b.must("stop")
}
