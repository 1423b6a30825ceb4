package rules

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Verdict is about a connection.
type Verdict int8

// The verdicts. Only Allow and Deny leave the package.
const (
	open   Verdict = iota // no rule has decided yet
	passed                // an admin's rule leaves it to the next tier
	Allow
	Deny
)

func (v Verdict) String() string {
	switch v {
	case Allow:
		return "allow"
	case Deny:
		return "deny"
	}
	return "undecided"
}

// protocols are those that have ports, in the order of Decision.Ports.
var protocols = []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// Range is a range of ports with one verdict.
type Range struct {
	First, Last uint16
	Verdict     Verdict
}

// Decision is what a class decides about one peer. Two with the same result are equal in form.
type Decision struct {
	// Other is for protocols without ports.
	Other Verdict
	// Ports are TCP's, UDP's and SCTP's: all ports, ascending, neighbours differ.
	Ports [3][]Range
}

func undecided() *Decision {
	d := &Decision{}
	for i := range d.Ports {
		d.Ports[i] = []Range{{Last: 65535}}
	}
	return d
}

// ports are the connections that a rule is about.
type ports struct {
	protocol int // index of protocols
	first    uint16
	last     uint16
}

func (p ports) has(protocol int, port uint16) bool {
	return p.protocol == protocol && p.first <= port && port <= p.last
}

// decide gives v to what is open, of all protocols if all, otherwise of some ports.
func (d *Decision) decide(all bool, some []ports, v Verdict) {
	if all {
		d.replace(open, v)
		return
	}
	for _, p := range some {
		d.Ports[p.protocol] = paint(d.Ports[p.protocol], p.first, p.last, func(was Verdict) Verdict {
			if was == open {
				return v
			}
			return was
		})
	}
}

// keep gives the ports of a Service of the nodes the verdicts that another decision has.
func (d *Decision) keep(s *Service, other *Decision) {
	for _, p := range s.Ports {
		i := slices.Index(protocols, p.Protocol)
		d.Ports[i] = paint(d.Ports[i], s.Target, s.Target, func(Verdict) Verdict { return other.at(p.Protocol, s.Target) })
	}
}

// replace turns all parts of one verdict into another.
func (d *Decision) replace(from, to Verdict) {
	if d.Other == from {
		d.Other = to
	}
	for i := range d.Ports {
		d.Ports[i] = paint(d.Ports[i], 0, 65535, func(was Verdict) Verdict {
			if was == from {
				return to
			}
			return was
		})
	}
}

// paint changes the verdicts of the ports from first to last.
func paint(ranges []Range, first, last uint16, change func(Verdict) Verdict) []Range {
	var out []Range
	add := func(r Range) {
		if n := len(out); n > 0 && out[n-1].Verdict == r.Verdict {
			out[n-1].Last = r.Last
			return
		}
		out = append(out, r)
	}
	for _, r := range ranges {
		if r.Last < first || r.First > last {
			add(r)
			continue
		}
		if r.First < first {
			add(Range{r.First, first - 1, r.Verdict})
		}
		add(Range{max(r.First, first), min(r.Last, last), change(r.Verdict)})
		if r.Last > last {
			add(Range{last + 1, r.Last, r.Verdict})
		}
	}
	return out
}

// at returns the verdict for a port of a protocol; an unknown protocol has no ports.
func (d *Decision) at(protocol corev1.Protocol, port uint16) Verdict {
	i := slices.Index(protocols, protocol)
	if i < 0 {
		return d.Other
	}
	for _, r := range d.Ports[i] {
		if port <= r.Last {
			return r.Verdict
		}
	}
	return d.Other
}

// equal reports whether two decisions are the same.
func (d *Decision) equal(o *Decision) bool {
	return d == o || d.Other == o.Other && slices.EqualFunc(d.Ports[:], o.Ports[:], slices.Equal[[]Range])
}

// Exceptions are the ranges whose verdict is not Other.
func (d *Decision) Exceptions(protocol int) []Range {
	var out []Range
	for _, r := range d.Ports[protocol] {
		if r.Verdict != d.Other {
			out = append(out, r)
		}
	}
	return out
}

// Uniform reports whether all connections have one verdict.
func (d *Decision) Uniform() bool {
	for i := range d.Ports {
		if len(d.Ports[i]) != 1 || d.Ports[i][0].Verdict != d.Other {
			return false
		}
	}
	return true
}
