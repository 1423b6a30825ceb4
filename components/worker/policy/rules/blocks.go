package rules

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
	netutils "k8s.io/utils/net"
)

// addresses is a set of addresses of both families, by its ranges in ascending order; those of IPv4 come first.
type addresses []netipx.IPRange

// newAddresses returns the addresses of cidr without those of except.
func newAddresses(cidr string, except []string) (addresses, error) {
	var b netipx.IPSetBuilder
	add := func(s string, to func(netip.Prefix)) error {
		_, n, err := netutils.ParseCIDRSloppy(s) // as lenient as the API
		if err != nil {
			return err
		}
		p, _ := netipx.FromStdIPNet(n)
		to(p)
		return nil
	}
	if err := add(cidr, b.AddPrefix); err != nil {
		return nil, err
	}
	for _, e := range except {
		if err := add(e, b.RemovePrefix); err != nil {
			return nil, err
		}
	}
	set, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	return set.Ranges(), nil
}

// of returns the set of some addresses.
func of(ips []netip.Addr) (a addresses) {
	for _, ip := range ips {
		a = append(a, netipx.IPRangeFrom(ip, ip))
	}
	return union([]addresses{a})
}

// union returns the addresses of all.
func union(all []addresses) addresses {
	var b netipx.IPSetBuilder
	for _, a := range all {
		for _, r := range a {
			b.AddRange(r)
		}
	}
	set, err := b.IPSet()
	if err != nil {
		panic(err) // only of invalid ranges
	}
	return set.Ranges()
}

// contains looks an address up.
func (a addresses) contains(ip netip.Addr) bool {
	i, found := slices.BinarySearchFunc(a, ip, func(r netipx.IPRange, ip netip.Addr) int {
		switch {
		case r.To().Less(ip):
			return -1
		case ip.Less(r.From()):
			return 1
		}
		return 0
	})
	return found && a[i].Contains(ip)
}

// families are the ranges of all addresses.
var families = []netipx.IPRange{
	netipx.RangeOfPrefix(netip.MustParsePrefix("0.0.0.0/0")),
	netipx.RangeOfPrefix(netip.MustParsePrefix("::/0")),
}

// split divides all addresses at the bounds of the sets: within a range, each set has all addresses or none.
func split(sets []addresses) []netipx.IPRange {
	var starts []netip.Addr
	for _, f := range families {
		starts = append(starts, f.From())
	}
	for _, set := range sets {
		for _, r := range set {
			starts = append(starts, r.From())
			if next := r.To().Next(); next.IsValid() {
				starts = append(starts, next)
			}
		}
	}
	slices.SortFunc(starts, netip.Addr.Compare)
	starts = slices.Compact(starts)
	out := make([]netipx.IPRange, 0, len(starts))
	for i, start := range starts {
		end := families[0].To()
		if start.Is6() {
			end = families[1].To()
		}
		if i+1 < len(starts) && starts[i+1].Is4() == start.Is4() {
			end = starts[i+1].Prev()
		}
		out = append(out, netipx.IPRangeFrom(start, end))
	}
	return out
}
