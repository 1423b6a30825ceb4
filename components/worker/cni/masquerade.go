package cni

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nft"
)

// masquerade gives pods' traffic to the outside the node's address, in a separate table. Traffic among pods, of other
// nodes too, keeps its source.
func masquerade(ctx context.Context, podCIDRs, clusterCIDRs []string) error {
	table, err := nft.Open(knftables.InetFamily, names.NFTable)
	if err != nil {
		return fmt.Errorf("masquerade: %w", err)
	}
	rules, err := masqueradeRules(podCIDRs, clusterCIDRs)
	if err != nil {
		return err
	}
	tx := table.NewTransaction()
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("Kubelith: masquerading of pods")})
	chain := &knftables.Chain{
		Name:     masqueradeChain,
		Type:     knftables.PtrTo(knftables.NATType),
		Hook:     knftables.PtrTo(knftables.PostroutingHook),
		Priority: knftables.PtrTo(knftables.SNATPriority),
	}
	tx.Add(chain)
	tx.Flush(chain)
	for _, r := range rules {
		tx.Add(&knftables.Rule{Chain: chain.Name, Rule: r})
	}
	if err := table.Run(ctx, tx); err != nil {
		return fmt.Errorf("masquerade %v: %w", podCIDRs, err)
	}
	return nil
}

const masqueradeChain = "postrouting"

// masquerades reports whether the rules are there, or cannot be read.
func masquerades(ctx context.Context, podCIDRs []string) bool {
	table, err := nft.Open(knftables.InetFamily, names.NFTable)
	if err != nil {
		return true
	}
	rules, err := table.ListRules(ctx, masqueradeChain)
	if knftables.IsNotFound(err) {
		return false
	}
	return err != nil || len(rules) == len(podCIDRs)
}

// masqueradeRules returns a rule per family. A pod's own CIDR counts as one of the cluster's.
func masqueradeRules(podCIDRs, clusterCIDRs []string) ([]string, error) {
	var rules []string
	for _, cidr := range podCIDRs {
		pods, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, err
		}
		family, multicast := "ip", "224.0.0.0/4"
		if pods.Addr().Is6() {
			family, multicast = "ip6", "ff00::/8"
		}
		rule := fmt.Sprintf("%s saddr %s %s daddr != %s %s daddr != %s", family, pods.Masked(), family, multicast, family, pods.Masked())
		for _, c := range clusterCIDRs {
			cluster, err := netip.ParsePrefix(c)
			if err != nil {
				return nil, err
			}
			if cluster.Addr().Is4() == pods.Addr().Is4() {
				rule += fmt.Sprintf(" %s daddr != %s", family, cluster.Masked())
			}
		}
		rules = append(rules, rule+" masquerade fully-random")
	}
	return rules, nil
}

// removeMasquerade removes the table, if it is there: a third party's network has its own rules.
func removeMasquerade() error {
	return nft.Remove(knftables.InetFamily, names.NFTable)
}
