package kernel

import (
	"context"
	"slices"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/netevents"
)

// Watch calls removed when a table of network policies, or a rule of those that are always there, may have been
// removed, by this process too, until ctx ends. There is at least one call after each removal.
func Watch(ctx context.Context, removed func()) error {
	return netevents.Removals(ctx, func(r netevents.Removal) {
		if isOurs(r) {
			removed()
		}
	})
}

// isOurs reports whether something that should be there may have been removed. The chains of classes come and go.
func isOurs(r netevents.Removal) bool {
	return r.Table == "" || r.Table == names.PolicyTable && (r.Chain == "" || slices.Contains(fixedChains(), r.Chain))
}

// Check reports whether another program has removed the table, or one of its fixed rules: Replace writes it again.
func (t *Table) Check(ctx context.Context) (removed bool) {
	if !t.whole {
		return false
	}
	t.whole = hasRules(ctx, t.nft, t.fixed)
	return !t.whole
}

// hasRules reports whether chains have as many rules.
func hasRules(ctx context.Context, nft knftables.Interface, wanted map[string]int) bool {
	for chain, n := range wanted {
		if has, err := nft.ListRules(ctx, chain); err != nil || len(has) != n {
			return false
		}
	}
	return true
}
