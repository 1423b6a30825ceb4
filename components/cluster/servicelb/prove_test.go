package servicelb

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

func TestProver(t *testing.T) {
	var mu sync.Mutex // a round runs handshakes side by side
	var handshakes []string
	up := map[string]bool{"10.0.0.1:10250": true}
	p := newProver(Options{Addresses: nodeaddr.Parse(nil, nil)}, func(_ context.Context, node string, at netip.AddrPort) error {
		mu.Lock()
		defer mu.Unlock()
		handshakes = append(handshakes, node+" "+at.String())
		if !up[at.String()] {
			return errors.New("no answer")
		}
		return nil
	})
	honest := node("n1")
	thief := node("n2", alsoAt(corev1.NodeInternalIP, unproven), alsoAt(corev1.NodeExternalIP, "198.51.100.2"), alsoAt(corev1.NodeInternalIP, "10.0.0.1"))
	server := node("n3", labelled(names.RoleLabel, names.RoleServer))
	simulated := node("n4", func(n *corev1.Node) { n.Labels = nil })
	nodes := []*corev1.Node{honest, thief, server, simulated}
	proven := func(n *corev1.Node, ip string, held bool) bool { return p.proven(n, netip.MustParseAddr(ip), held) }

	if proven(honest, "10.0.0.1", false) || !proven(honest, "10.0.0.1", true) {
		t.Error("before the first round nothing is proven, and nothing taken back")
	}
	if !p.round(t.Context(), nodes) {
		t.Error("the proof of n1 is no news")
	}
	slices.Sort(handshakes)
	if want := []string{"n1 10.0.0.1:10250", "n2 1.1.1.1:10250", "n2 10.0.0.2:10250"}; !slices.Equal(handshakes, want) {
		t.Errorf("handshakes with %q, want %q", handshakes, want)
	}
	for _, c := range []struct {
		n    *corev1.Node
		ip   string
		want bool
	}{{honest, "10.0.0.1", true}, {thief, unproven, false}, {thief, "10.0.0.2", false}, {thief, "198.51.100.2", true}, {server, "10.0.0.3", true}} {
		if got := proven(c.n, c.ip, false); got != c.want {
			t.Errorf("%s at %s: %v", c.n.Name, c.ip, got)
		}
	}

	handshakes, up["10.0.0.2:10250"] = nil, true
	for range refutedAfter - 2 {
		p.round(t.Context(), nodes)
	}
	if slices.Contains(handshakes, "n1 10.0.0.1:10250") {
		t.Error("an address with a proof gets another handshake")
	}
	if !proven(thief, unproven, true) || len(p.refuted(thief, []netip.Addr{netip.MustParseAddr(unproven)})) > 0 {
		t.Error("a Service loses its address before it is clear")
	}
	if !p.round(t.Context(), nodes) || proven(thief, unproven, true) || !proven(thief, "10.0.0.2", false) {
		t.Error("a Service keeps an address without an answer")
	}
	if lines := p.refuted(thief, []netip.Addr{netip.MustParseAddr(unproven)}); len(lines) != 1 || lines[0] != "cannot verify its kubelet at 1.1.1.1 (no answer)" {
		t.Errorf("logged: %q", lines)
	}

	// Another node of that name, and one that is not Ready: its kubelet may be starting again.
	again := node("n1", func(n *corev1.Node) { n.UID = "another" }, ready(corev1.ConditionFalse))
	up["10.0.0.1:10250"] = false
	for range refutedAfter + 1 {
		p.round(t.Context(), []*corev1.Node{again})
	}
	if proven(again, "10.0.0.1", false) || !proven(again, "10.0.0.1", true) || len(p.known) != 1 {
		t.Errorf("another node has the proof of the first, or loses what it has: %v", p.known)
	}
}
