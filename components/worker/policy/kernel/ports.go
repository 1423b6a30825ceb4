package kernel

import (
	"context"
	"fmt"
	"maps"
	"net/netip"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nft"
)

// Ports are a table of the bridge: what comes from the port of a pod has the pod's address as its source. Otherwise a
// pod with the right to send raw packets, which pods have by default, could send as another one, or by link-local
// addresses, which no policy knows. The zero value is ready to use.
type Ports struct {
	nft     knftables.Interface // nil before it is first needed
	whole   bool
	fixed   map[string]int          // how many rules frame has added to each chain
	present map[string][]netip.Addr // by interface
}

// The chains and sets of the table.
const (
	pod        = "pod"
	prerouting = "prerouting"

	portSet    = "ports"
	sourceSet4 = "sources-ip"
	sourceSet6 = "sources-ip6"
)

// Write gives the table these ports, by the names of interfaces.
func (p *Ports) Write(ctx context.Context, wanted map[string][]netip.Addr) (err error) {
	if p.nft == nil {
		if p.nft, err = nft.Open(knftables.BridgeFamily, names.PolicyTable); err != nil {
			return fmt.Errorf("network policies need nft with family bridge: %w", err)
		}
	}
	tx := p.nft.NewTransaction()
	present := p.present
	if !p.whole {
		present = nil
		tx.Add(&knftables.Table{})
		tx.Delete(&knftables.Table{})
		p.frame(tx)
	}
	for name, ips := range present {
		if _, stays := wanted[name]; !stays {
			for _, e := range portElementsOf(name, ips) {
				tx.Delete(e)
			}
		}
	}
	for name, ips := range wanted {
		if _, known := present[name]; !known {
			for _, e := range portElementsOf(name, ips) {
				tx.Add(e)
			}
		}
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	if err := p.nft.Run(ctx, tx); err != nil {
		p.whole = false
		return fmt.Errorf("guard the sources of pods' packets: %w", err)
	}
	p.whole, p.present = true, maps.Clone(wanted)
	return nil
}

func (p *Ports) frame(tx *knftables.Transaction) {
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Kubelith: sources of pods with network policies")})
	tx.Add(&knftables.Set{Name: portSet, Type: "ifname"})
	tx.Add(&knftables.Set{Name: sourceSet4, Type: "ifname . ipv4_addr"})
	tx.Add(&knftables.Set{Name: sourceSet6, Type: "ifname . ipv6_addr"})
	p.fixed = map[string]int{}
	add := func(chain, text string) {
		tx.Add(rule(chain, text))
		p.fixed[chain]++
	}
	tx.Add(&knftables.Chain{Name: pod})
	for _, r := range []string{
		"iifname . ip6 saddr @" + sourceSet6 + " accept",
		"iifname . arp saddr ip @" + sourceSet4 + " accept",
		// Neighbours and multicast groups are found by link-local addresses, or by none.
		"icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert, mld-listener-report, mld2-listener-report } accept",
		"drop",
	} {
		add(pod, r)
	}
	tx.Add(&knftables.Chain{
		Name:     prerouting,
		Type:     knftables.PtrTo(knftables.FilterType),
		Hook:     knftables.PtrTo(knftables.PreroutingHook),
		Priority: knftables.PtrTo(knftables.BaseChainPriority("0")),
	})
	// Most packets: one lookup, whatever else there is.
	add(prerouting, "iifname . ip saddr @"+sourceSet4+" accept")
	add(prerouting, "iifname @"+portSet+" jump "+pod)
}

func portElementsOf(name string, ips []netip.Addr) []*knftables.Element {
	out := []*knftables.Element{{Set: portSet, Key: []string{name}}}
	for _, ip := range ips {
		set := sourceSet4
		if ip.Is6() {
			set = sourceSet6
		}
		out = append(out, &knftables.Element{Set: set, Key: []string{name, ip.String()}})
	}
	return out
}

// Remove removes the table.
func (p *Ports) Remove() error {
	p.whole = false
	return removePorts()
}

func removePorts() error {
	if err := nft.Remove(knftables.BridgeFamily, names.PolicyTable); err != nil {
		return fmt.Errorf("remove the guard of pods' packets: %w", err)
	}
	return nil
}

// Check notices that another program has removed the table or rules of it: Write creates it again.
func (p *Ports) Check(ctx context.Context) (removed bool) {
	if !p.whole {
		return false
	}
	p.whole = hasRules(ctx, p.nft, p.fixed)
	return !p.whole
}
