package rules

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Class decides about the connections of the pods that are selected by the same policies, in one direction. Its
// exported fields never change.
type Class struct {
	Name      string
	Direction Direction
	Policies  []string // of which it consists
	// Final decides about what is neither in Blocks nor, by its address, decided otherwise (Changes.Peers).
	Final Verdict
	// Blocks are ranges of addresses that are decided otherwise, disjoint, in ascending order.
	Blocks []Block

	// peers are addresses that are decided otherwise than by Final or Blocks, because of who has them.
	peers  map[netip.Addr]*Decision
	key    string
	users  int
	tiers  *tiers
	ranges []classRange
	memo   map[memoKey]*Decision
}

// Block is a range of addresses of one family.
type Block struct {
	Range    netipx.IPRange
	Decision *Decision
}

// classRange is a range whose addresses are in the same rules.
type classRange struct {
	netipx.IPRange
	rules    string // a bit for each rule with addresses
	decision *Decision
}

type memoKey struct {
	profile *profile
	rules   string
}

func newClass(key, name string, d Direction, t *tiers) *Class {
	c := &Class{key: key, Name: name, Direction: d, Policies: t.isolating, peers: map[netip.Addr]*Decision{}, tiers: t, memo: map[memoKey]*Decision{}}
	for _, r := range slices.Concat(t.admin, t.baseline) {
		if !slices.Contains(c.Policies, r.policy) {
			c.Policies = append(c.Policies, r.policy)
		}
	}
	var sets []addresses
	for _, r := range t.all() {
		if len(r.addresses) > 0 {
			sets = append(sets, r.addresses)
		}
	}
	c.Final = t.decide(view{has: func(*rule) bool { return false }}).Other
	for _, r := range split(sets) {
		bits := make([]byte, (len(sets)+7)/8)
		for i, set := range sets {
			if set.contains(r.From()) {
				bits[i/8] |= 1 << (i % 8)
			}
		}
		in := classRange{IPRange: r, rules: string(bits)}
		in.decision = c.decide(nil, in.rules)
		c.ranges = append(c.ranges, in)
	}
	for _, r := range c.ranges {
		if r.decision.Uniform() && r.decision.Other == c.Final {
			continue
		}
		if n := len(c.Blocks); n > 0 && c.Blocks[n-1].Decision.equal(r.decision) && c.Blocks[n-1].Range.To().Next() == r.From() {
			c.Blocks[n-1].Range = netipx.IPRangeFrom(c.Blocks[n-1].Range.From(), r.To())
			continue
		}
		c.Blocks = append(c.Blocks, Block{r.IPRange, r.decision})
	}
	return c
}

// decide returns the decision about a peer whose address is in those rules.
func (c *Class) decide(peer *profile, rules string) *Decision {
	k := memoKey{peer, rules}
	d := c.memo[k]
	if d == nil {
		d = c.tiers.decide(view{profile: peer, has: c.in(rules)})
		c.memo[k] = d
	}
	return d
}

// in returns whether an address that is in those rules is in one.
func (c *Class) in(rules string) func(*rule) bool {
	in := map[*rule]bool{}
	i := 0
	for _, r := range c.tiers.all() {
		if len(r.addresses) > 0 {
			in[r] = rules[i/8]&(1<<(i%8)) != 0
			i++
		}
	}
	return func(r *rule) bool { return in[r] }
}

// rangeOf returns the range that an address is in.
func (c *Class) rangeOf(ip netip.Addr) *classRange {
	i, _ := slices.BinarySearchFunc(c.ranges, ip, func(r classRange, ip netip.Addr) int {
		if r.To().Less(ip) {
			return -1
		}
		return 1
	})
	return &c.ranges[i]
}

// peer returns the decision about a pod at an address, or nil if it is that about the address.
func (c *Class) peer(p *profile, ip netip.Addr) *Decision {
	r := c.rangeOf(ip)
	if d := c.decide(p, r.rules); !d.equal(r.decision) {
		return d
	}
	return nil
}

// endpoint returns the decision about an endpoint of a Service of the nodes, or nil as peer does.
func (c *Class) endpoint(s *Service, ip netip.Addr) *Decision {
	if d := c.tiers.decide(c.views(s, ip)...); !d.equal(c.rangeOf(ip).decision) {
		return d
	}
	return nil
}

// views are how rules see an endpoint of a Service: as the node's address that it is; on the Service's port also as the
// pod that would be behind it, and as the Service's address, since there is no pod that a rule could have named
// instead.
func (c *Class) views(s *Service, ip netip.Addr) []view {
	here := c.in(c.rangeOf(ip).rules)
	views := []view{{has: here}}
	if c.Direction == Ingress { // the node as a client
		return views
	}
	views[0].hidden = s
	views = append(views, view{profile: s.profile, has: here, service: s})
	for _, address := range s.Addresses {
		if address.Is4() == ip.Is4() {
			views = append(views, view{has: c.in(c.rangeOf(address).rules), service: s})
		}
	}
	return views
}

// HasPorts reports whether any decision of the class can depend on ports. Those about Services of the nodes do.
func (c *Class) HasPorts() bool {
	return c.tiers.services || slices.ContainsFunc(c.tiers.all(), func(r *rule) bool { return !r.allPorts })
}

// Elsewhere returns the decision about an address, whoever has it: that of its block, or Final.
func (c *Class) Elsewhere(ip netip.Addr) *Decision { return c.rangeOf(ip).decision }
