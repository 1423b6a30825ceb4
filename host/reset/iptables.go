package reset

import (
	"context"
	"fmt"
	"slices"
)

// kubeletChains are the chains that a kubelet creates where the host has iptables.
// Source: pkg/kubelet/kubelet_network_linux.go.
var kubeletChains = []string{"KUBE-FIREWALL", "KUBE-KUBELET-CANARY", "KUBE-IPTABLES-HINT"}

// kubeletTable is a table of iptables in which the kubelet has chains.
type kubeletTable struct {
	nftTable
	chains []string
	jumps  []nftRule // from other chains to these
	shared bool      // other software uses it too
}

// kubeletTables returns the tables with the kubelet's chains; none if that kubelet is not ours, or another server uses
// them too.
func (r *Reset) kubeletTables(ctx context.Context) (out []kubeletTable) {
	if !r.owned.kubelet || r.neighbour() {
		return nil
	}
	for _, t := range r.listTables(ctx) {
		if t.family != "ip" && t.family != "ip6" || !slices.Contains([]string{"filter", "mangle", "nat"}, t.name) {
			continue
		}
		found := kubeletTable{nftTable: t}
		for _, entry := range r.nftJSON(ctx, "list", "table", t.family, t.name).Nftables {
			switch c, rule := entry.Chain, entry.Rule; {
			case c != nil && slices.Contains(kubeletChains, c.Name):
				found.chains = append(found.chains, c.Name)
			case c != nil && (c.Hook == "" || c.Policy != "accept"):
				found.shared = true
			case rule != nil && slices.Contains(kubeletChains, rule.Chain): // goes with its chain
			case rule != nil && slices.ContainsFunc(rule.Expr, func(e nftExpr) bool { return e.Jump != nil && slices.Contains(kubeletChains, e.Jump.Target) }):
				found.jumps = append(found.jumps, nftRule{table: t, chain: rule.Chain, handle: fmt.Sprint(rule.Handle)})
			case rule != nil:
				found.shared = true
			}
		}
		if len(found.chains) > 0 {
			out = append(out, found)
		}
	}
	return out
}

// removeKubeletChains removes what the kubelet created, and the tables that no other software uses.
func (r *Reset) removeKubeletChains(ctx context.Context) []error {
	var errs []error
	for _, t := range r.kubeletTables(ctx) {
		commands := [][]string{{"delete", "table", t.family, t.name}}
		if t.shared {
			commands = nil
			for _, jump := range t.jumps {
				commands = append(commands, []string{"delete", "rule", t.family, t.name, jump.chain, "handle", jump.handle})
			}
			for _, chain := range t.chains {
				commands = append(commands, []string{"flush", "chain", t.family, t.name, chain}, []string{"delete", "chain", t.family, t.name, chain})
			}
		}
		failed := len(errs)
		for _, command := range commands {
			if _, err := r.nets.nft(ctx, command...); err != nil {
				errs = append(errs, fmt.Errorf("remove the kubelet's chains from the table %s %s: %w", t.family, t.name, err))
				break
			}
		}
		if len(errs) == failed {
			r.printf("removed the kubelet's chains from the table %s %s", t.family, t.name)
		}
	}
	return errs
}
