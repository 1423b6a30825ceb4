package reset

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"kubelith.io/kubelith/base/names"
)

// nftTable is a table of the packet filter.
type nftTable struct{ family, name string }

// nftRule is a rule that a CNI plugin created for one container.
type nftRule struct {
	table         nftTable
	chain, handle string
	comment       string
}

// Tables that CNI's plugins share among all their users on the host (containernetworking/plugins v1.9: pkg/ip and
// plugins/meta/portmap).
const (
	masqueradeTable = "cni_plugins_masquerade"
	hostPortTable   = "cni_hostport"
)

// ruleset is the part of `nft -j list` that we read; see libnftables-json(5).
type ruleset struct {
	Nftables []nftEntry
}

// nftEntry is one of these, or something else.
type nftEntry struct {
	Table *struct{ Family, Name string }
	Chain *struct{ Name, Hook, Policy string }
	Rule  *struct {
		Family, Table, Chain, Comment string
		Handle                        int
		Expr                          []nftExpr
	}
}

// nftExpr is a part of a rule.
type nftExpr struct{ Jump *struct{ Target string } }

// listTables returns all tables of the packet filter; none without nft, since then none can exist.
func (r *Reset) listTables(ctx context.Context) []nftTable {
	var out []nftTable
	for _, entry := range r.nftJSON(ctx, "list", "tables").Nftables {
		if entry.Table != nil {
			out = append(out, nftTable{entry.Table.Family, entry.Table.Name})
		}
	}
	return out
}

func (r *Reset) nftJSON(ctx context.Context, args ...string) ruleset {
	var rules ruleset
	text, err := r.nets.nft(ctx, append([]string{"-j"}, args...)...)
	if err != nil || json.Unmarshal([]byte(text), &rules) != nil {
		return ruleset{}
	}
	return rules
}

// packetFilter returns our tables and kube-proxy's, unless another server uses them, and the rules in CNI's tables that
// were created for one of these containers.
func (r *Reset) packetFilter(ids map[string]bool) (tables []nftTable, rules []nftRule) {
	ctx := context.Background() // reads only
	for _, t := range r.listTables(ctx) {
		switch t.name {
		case names.NFTable, names.PolicyTable, names.VXLANTable, names.DNSTable, "kube-proxy":
			if !r.neighbour() {
				tables = append(tables, t)
			}
		case masqueradeTable, hostPortTable:
			for _, entry := range r.nftJSON(ctx, "list", "table", t.family, t.name).Nftables {
				if rule := entry.Rule; rule != nil && isOurRule(rule.Comment, ids) {
					rules = append(rules, nftRule{t, rule.Chain, strconv.Itoa(rule.Handle), rule.Comment})
				}
			}
		}
	}
	return tables, rules
}

// isOurRule matches the comment: "HASH, net: NETWORK, if: eth0, id: ID", whose end may be missing, or just the ID.
func isOurRule(comment string, ids map[string]bool) bool {
	const enough = 12 // remaining characters of an id; there is no shorter id
	_, id, masquerade := strings.Cut(comment, ", id: ")
	if !masquerade {
		return ids[comment]
	}
	for known := range ids {
		if len(id) >= enough && strings.HasPrefix(known, id) {
			return true
		}
	}
	return false
}

// removeUnusedTables deletes CNI's tables in which no container has a rule any more.
func (r *Reset) removeUnusedTables(ctx context.Context) []error {
	var errs []error
	for _, t := range r.listTables(ctx) {
		if t.name != masqueradeTable && t.name != hostPortTable {
			continue
		}
		list := r.nftJSON(ctx, "list", "table", t.family, t.name)
		used := slices.ContainsFunc(list.Nftables, func(e nftEntry) bool { return e.Rule != nil && e.Rule.Comment != "" })
		if used || len(list.Nftables) == 0 {
			continue
		}
		if _, err := r.nets.nft(ctx, "delete", "table", t.family, t.name); err != nil {
			errs = append(errs, fmt.Errorf("remove nftables table %s %s: %w", t.family, t.name, err))
			continue
		}
		r.printf("removed nftables table %s %s", t.family, t.name)
	}
	return errs
}
