package rules

import (
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Class decides about the connections of the pods that are selected by the same policies, in one direction. Except Peers it
// never changes.
type Class struct {
	Name      string
	Direction Direction
	Policies  []string // of which it consists
	// Final decides about what is neither in Peers nor in Blocks.
	Final Verdict
	// Blocks are ranges of addresses that are decided otherwise, disjoint, in ascending order.
	Blocks []Block
	// Peers are addresses that are decided otherwise than by Final or Blocks, because of who has them.
	Peers map[netip.Addr]*Decision

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
	c := &Class{key: key, Name: name, Direction: d, Policies: t.isolating, Peers: map[netip.Addr]*Decision{}, tiers: t, memo: map[memoKey]*Decision{}}
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
	c.Final = t.decide(nil, func(*rule) bool { return false }).Other
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
		in := map[*rule]bool{}
		i := 0
		for _, r := range c.tiers.all() {
			if len(r.addresses) > 0 {
				in[r] = rules[i/8]&(1<<(i%8)) != 0
				i++
			}
		}
		d = c.tiers.decide(peer, func(r *rule) bool { return in[r] })
		c.memo[k] = d
	}
	return d
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

// endpoint returns the decision about an endpoint of a Service of the nodes, or nil as peer does. Its own port is decided as
// that of the Service; a rule with the Service's own address allows it too, since there is no pod that it could name.
func (c *Class) endpoint(s *Service, ip netip.Addr) *Decision {
	r := c.rangeOf(ip)
	pod := c.decide(s.profile, r.rules)
	d := &Decision{Other: r.decision.Other, Ports: r.decision.Ports}
	for _, port := range s.Ports {
		v := pod.at(port.Protocol, port.Port)
		for _, address := range s.Addresses {
			if c.rangeOf(address).decision.at(port.Protocol, port.Port) == Allow {
				v = Allow
			}
		}
		i := slices.Index(protocols, port.Protocol)
		d.Ports[i] = paint(d.Ports[i], s.Target, s.Target, func(Verdict) Verdict { return v })
	}
	if d.equal(r.decision) {
		return nil
	}
	return d
}

// HasPorts reports whether any decision of the class can depend on ports.
func (c *Class) HasPorts() bool {
	return slices.ContainsFunc(c.tiers.all(), func(r *rule) bool { return !r.allPorts })
}
