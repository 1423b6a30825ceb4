package nft

import (
	"testing"

	"github.com/google/nftables"
)

func TestDropping(t *testing.T) {
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	chain := func(family nftables.TableFamily, hook *nftables.ChainHook, policy *nftables.ChainPolicy) *nftables.Chain {
		return &nftables.Chain{Name: "FORWARD", Table: &nftables.Table{Family: family, Name: "filter"}, Hooknum: hook, Policy: policy}
	}
	for name, c := range map[string]struct {
		chain *nftables.Chain
		want  string
	}{
		"drops":                {chain(nftables.TableFamilyIPv4, nftables.ChainHookForward, &drop), "table ip filter, chain FORWARD"},
		"drops, both families": {chain(nftables.TableFamilyINet, nftables.ChainHookForward, &drop), "table inet filter, chain FORWARD"},
		"accepts":              {chain(nftables.TableFamilyIPv4, nftables.ChainHookForward, &accept), ""},
		"another hook":         {chain(nftables.TableFamilyIPv4, nftables.ChainHookInput, &drop), ""},
		"no base chain":        {chain(nftables.TableFamilyIPv4, nil, nil), ""},
		"no such hook":         {chain(nftables.TableFamilyNetdev, nftables.ChainHookForward, &drop), ""},
	} {
		t.Run(name, func(t *testing.T) {
			chains := []*nftables.Chain{chain(nftables.TableFamilyIPv4, nftables.ChainHookInput, &accept), c.chain}
			if got := dropping(chains); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
