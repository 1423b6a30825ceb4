package rules

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Reason is why a connection is allowed or denied in one direction.
type Reason struct {
	Direction Direction
	Verdict   Verdict
	// Policy and Rule decide; both are empty if no policy selects the pod, and Rule if none of its policies allows it.
	Policy, Rule string
	// Policies are all that select the pod.
	Policies []string
}

func (r Reason) String() string {
	switch {
	case r.Rule != "":
		return fmt.Sprintf("%s: %s by %s, %s", r.Direction, r.Verdict, r.Policy, r.Rule)
	case len(r.Policies) > 0:
		return fmt.Sprintf("%s: %s, no rule of %s matches", r.Direction, r.Verdict, join(r.Policies))
	}
	return fmt.Sprintf("%s: %s, no policy selects the pod", r.Direction, r.Verdict)
}

// Because returns why a connection is denied: "ingress, no rule of NetworkPolicy default/db matches".
func (r Reason) Because() string {
	if r.Rule != "" {
		return fmt.Sprintf("%s, %s, %s", r.Direction, r.Policy, r.Rule)
	}
	return fmt.Sprintf("%s, no rule of %s matches", r.Direction, join(r.Policies))
}

func join(names []string) string {
	out := ""
	for i, n := range names {
		switch {
		case i == 0:
		case i == len(names)-1:
			out += " and "
		default:
			out += ", "
		}
		out += n
	}
	return out
}

// Explain returns what policies of the pod with that UID decide about a connection with an address, which may be a
// pod's. The result is that of a node's table; it does not depend on where the pod is.
func (c *Compiler) Explain(uid types.UID, d Direction, other netip.Addr, protocol corev1.Protocol, port uint16) (Reason, error) {
	c.moveNodes()
	pod := c.pods[uid]
	if pod == nil {
		return Reason{}, fmt.Errorf("no pod has the UID %s", uid)
	}
	reason := Reason{Direction: d, Verdict: Allow}
	t, key := c.tiersOf(pod, d)
	if t == nil {
		return reason, nil
	}
	class := newClass(key, "", d, t)
	reason.Policies = class.Policies
	decision := c.decisionOf(class, other)
	if decision == nil {
		decision = class.rangeOf(other).decision
	}
	reason.Verdict = decision.at(protocol, port)

	if r := t.deciding(c.viewsOf(class, other), protocol, port); r != nil {
		reason.Policy, reason.Rule = r.policy, r.name
	}
	return reason, nil
}

// Name returns the pod that has an address, as NAMESPACE/NAME, and the UID; empty if none has.
func (c *Compiler) Name(ip netip.Addr) (name string, uid types.UID) {
	if p := c.addresses[ip]; p != nil {
		return p.Namespace + "/" + p.Name, p.UID
	}
	return "", ""
}

// viewsOf returns how the rules of a class see an address.
func (c *Compiler) viewsOf(class *Class, ip netip.Addr) []view {
	has := class.in(class.rangeOf(ip).rules)
	if p := c.addresses[ip]; p != nil {
		return []view{{profile: p.profile, has: has}}
	}
	for _, s := range c.services {
		if slices.Contains(s.Endpoints, ip) {
			return class.views(s, ip)
		}
	}
	return []view{{has: has}}
}

// answers reports whether a connection to a node is one to the Service.
func (s *Service) answers(protocol corev1.Protocol, port uint16) bool {
	return s != nil && port == s.Target && slices.ContainsFunc(s.Ports, func(p NamedPort) bool { return p.Protocol == protocol })
}

// deciding returns the rule that decides, or nil if none does.
func (t *tiers) deciding(views []view, protocol corev1.Protocol, port uint16) *rule {
	i := slices.Index(protocols, protocol)
	first := func(rules []*rule) *rule {
		for _, r := range rules {
			for _, v := range views {
				if !v.sees(r) || r.nodes && v.hidden.answers(protocol, port) {
					continue
				}
				all, some := v.ports(t, r)
				if all || slices.ContainsFunc(some, func(p ports) bool { return p.has(i, port) }) {
					return r
				}
			}
		}
		return nil
	}
	if r := first(t.admin); r != nil && r.action != passed {
		return r
	}
	if t.isolated {
		return first(t.policies)
	}
	if r := first(t.baseline); r != nil && r.action != passed {
		return r
	}
	return nil
}
