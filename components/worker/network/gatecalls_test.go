package network

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
)

// countingTable counts the calls that start the program nft.
type countingTable struct {
	knftables.Interface
	calls int
}

func (c *countingTable) ListElements(ctx context.Context, kind, name string) ([]*knftables.Element, error) {
	c.calls++
	return c.Interface.ListElements(ctx, kind, name)
}

func (c *countingTable) ListRules(ctx context.Context, chain string) ([]*knftables.Rule, error) {
	c.calls++
	return c.Interface.ListRules(ctx, chain)
}

func (c *countingTable) Run(ctx context.Context, tx *knftables.Transaction) error {
	c.calls++
	return c.Interface.Run(ctx, tx)
}

// TestGateAsksTheKernel: nft is started only where the kernel says that something has changed, or cannot tell.
func TestGateAsksTheKernel(t *testing.T) {
	fake := knftables.NewFake(knftables.InetFamily, names.VXLANTable)
	table := &countingTable{Interface: fake}
	generation, unknown := uint32(7), error(nil)
	g := &gate{nft: table, generation: func() (uint32, error) { return generation, unknown }}
	peer, other := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	ensure := func(when string, wantChanged, wantCalls bool, from ...netip.Addr) {
		t.Helper()
		table.calls = 0
		changed, err := g.ensure(t.Context(), from)
		if err != nil || changed != wantChanged || (table.calls > 0) != wantCalls {
			t.Errorf("%s: changed %v with %d calls of nft, error %v; want changed %v, calls %v", when, changed, table.calls, err, wantChanged, wantCalls)
		}
	}
	ensure("at first", true, true, peer)
	generation++ // by what was written
	ensure("after the write", false, true, peer)
	ensure("nothing has changed", false, false, peer)
	generation++
	ensure("another table has changed", false, true, peer)
	ensure("nothing has changed since", false, false, peer)
	ensure("a new peer", true, true, peer, other)
	generation++
	ensure("after the second write", false, true, peer, other)
	tx := fake.NewTransaction()
	tx.Flush(&knftables.Set{Name: "nodes-ip"})
	if err := fake.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	generation++
	ensure("another program has emptied a set", true, true, peer, other)
	generation++
	ensure("after the third write", false, true, peer, other)
	unknown = errors.New("no nftables")
	ensure("the kernel cannot tell", false, true, peer, other)
	ensure("still", false, true, peer, other)
	unknown = nil
	ensure("the kernel can tell again", false, true, peer, other)
	ensure("and nothing has changed", false, false, peer, other)
}
