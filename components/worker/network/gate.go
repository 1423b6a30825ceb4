package network

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nft"
)

// gate is the nftables table that admits VXLAN packets from the other nodes only: VXLAN itself takes them from anyone.
// It is in the kernel before a device is, and is removed after it; the end of the process changes nothing.
type gate struct {
	nft        knftables.Interface
	generation func() (uint32, error) // nft.Generation
	written    bool                   // by this process: another release's rules may differ
	// The table was seen to let in from, at a generation of nftables; 0: not since it was written.
	from []netip.Addr
	seen uint32
}

// Objects of the table.
const (
	gateInput   = "input"
	gateForward = "forward"
	gateCounter = "dropped"
)

// gateFamilies are the families in nft's words, with the set of the nodes' addresses.
var gateFamilies = [...]struct{ name, address, set string }{
	{"ip", "ipv4_addr", "nodes-ip"},
	{"ip6", "ipv6_addr", "nodes-ip6"},
}

func newGate() (*gate, error) {
	table, err := nft.Open(knftables.InetFamily, names.VXLANTable)
	if err != nil {
		return nil, fmt.Errorf("VXLAN needs nft, to refuse packets from outside the cluster: %w", err)
	}
	return &gate{nft: table, generation: nft.Generation}, nil
}

// sources returns the addresses from which peers send, sorted.
func sources(peers []node) []netip.Addr {
	var out []netip.Addr
	for _, p := range peers {
		for _, h := range []half{p.v4, p.v6} {
			if h.on() {
				out = append(out, h.address)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// ensure lets these addresses send, and no other; it reports whether it had to change the table.
func (g *gate) ensure(ctx context.Context, from []netip.Addr) (changed bool, err error) {
	now, err := g.generation()
	if err == nil && now == g.seen && slices.Equal(from, g.from) {
		return false, nil // nothing in nftables has changed
	}
	g.seen = 0
	if g.written && g.has(ctx, from) {
		if err == nil {
			g.from, g.seen = from, now
		}
		return false, nil
	}
	if err := g.nft.Run(ctx, g.write(from)); err != nil {
		return false, fmt.Errorf("write the packet filter of VXLAN: %w", err)
	}
	g.written = true
	return true, nil
}

// has reports whether the table is as ensure writes it.
func (g *gate) has(ctx context.Context, from []netip.Addr) bool {
	var now []netip.Addr
	for _, f := range gateFamilies {
		elements, err := g.nft.ListElements(ctx, "set", f.set)
		if err != nil {
			return false
		}
		for _, e := range elements {
			ip, err := netip.ParseAddr(e.Key[0])
			if err != nil {
				return false
			}
			now = append(now, ip)
		}
	}
	slices.SortFunc(now, netip.Addr.Compare)
	rules, err := g.nft.ListRules(ctx, "")
	return err == nil && len(rules) == len(gateRules()) && slices.Equal(now, from)
}

// gateRules are all rules. Forwarded packets may not spoof either: those of the node's pods would leave with the node's
// address.
func gateRules() (out []*knftables.Rule) {
	for _, f := range gateFamilies {
		foreign := fmt.Sprintf("udp dport %d %s saddr != @%s", port, f.name, f.set)
		out = append(out,
			&knftables.Rule{Chain: gateInput, Rule: knftables.Concat(foreign, "counter name", gateCounter, "drop")},
			&knftables.Rule{Chain: gateForward, Rule: knftables.Concat(foreign, f.name, "daddr @"+f.set, "counter name", gateCounter, "drop")})
	}
	return out
}

// write replaces everything but the counter at once.
func (g *gate) write(from []netip.Addr) *knftables.Transaction {
	tx := g.nft.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Kubelith: VXLAN packets come from the cluster's nodes")})
	tx.Add(&knftables.Counter{Name: gateCounter})
	for _, f := range gateFamilies {
		set := &knftables.Set{Name: f.set, Type: f.address}
		tx.Add(set)
		tx.Flush(set)
		for _, ip := range from {
			if ip.Is4() == (f.name == "ip") {
				tx.Add(&knftables.Element{Set: f.set, Key: []string{ip.String()}})
			}
		}
	}
	for chain, hook := range map[string]knftables.BaseChainHook{gateInput: knftables.InputHook, gateForward: knftables.ForwardHook} {
		c := &knftables.Chain{
			Name: chain, Type: knftables.PtrTo(knftables.FilterType), Hook: knftables.PtrTo(hook), Priority: knftables.PtrTo(knftables.FilterPriority),
		}
		tx.Add(c)
		tx.Flush(c)
	}
	for _, r := range gateRules() {
		tx.Add(r)
	}
	return tx
}
