package preflight

import (
	"fmt"
	"slices"
	"strings"
)

// Policies is the check of what network policies need. If it is not OK the node runs and does not enforce them;
// NotEnforced begins the message, the reason follows.
const (
	Policies    = "network policies"
	NotEnforced = "not enforced on this node, "
)

// feature is a part of the kernel that the tables of network policies use. Its rules use nothing else but the table
// family inet.
type feature struct{ name, option, rules string }

// inet begins rules of a feature.
const inet = "add table inet kubelith-check\nadd chain inet kubelith-check forward { type filter hook forward priority 0 ; }\n"

const inetOption = "CONFIG_NF_TABLES_INET"

var policyFeatures = []feature{
	{"nftables family inet", inetOption, inet},
	{"nftables family bridge", "CONFIG_NF_TABLES_BRIDGE",
		"add table bridge kubelith-check\n" +
			"add chain bridge kubelith-check c { type filter hook prerouting priority 0 ; }\n" +
			"add rule bridge kubelith-check c arp saddr ip 192.0.2.1 drop\n"},
	{"conntrack expressions", "CONFIG_NFT_CT",
		inet + "add rule inet kubelith-check forward ct original ip saddr 192.0.2.1 ct reply ip6 saddr 2001:db8::1 drop\n"},
	{"verdict maps", "CONFIG_NF_TABLES",
		inet + "add map inet kubelith-check m { type ipv4_addr : verdict ; }\nadd rule inet kubelith-check forward ip saddr vmap @m\n"},
	{"ranges in concatenations (Linux 5.6)", "CONFIG_NF_TABLES",
		inet + "add set inet kubelith-check s { type ipv4_addr . inet_proto . inet_service ; flags interval ; }\n" +
			"add element inet kubelith-check s { 192.0.2.1 . tcp . 1-9 }\n"},
	{"named counters", "CONFIG_NFT_OBJREF",
		inet + "add counter inet kubelith-check c\nadd rule inet kubelith-check forward counter name c\n"},
}

// checkPolicies writes the tables of network policies into an empty network namespace. If the kernel rejects them it
// tries each feature alone.
func checkPolicies(p probe, opts Options) []Result {
	nft, err := p.look("nft")
	if err != nil {
		return nil // checkPacketFilter says so
	}
	try := func(rules string) error {
		return opts.Passed.try(p, nft, rules, func() error {
			_, err := p.run(rules, nft, "-f", "-")
			return err
		})
	}
	err = try(opts.PolicyRules)
	if err == nil {
		return []Result{{Name: Policies, Status: OK, Message: "the kernel has what they need"}}
	}
	var missing, options []string
	for _, f := range policyFeatures {
		if slices.Contains(options, inetOption) && strings.HasPrefix(f.rules, inet) {
			continue // it cannot be tried without
		}
		if try(f.rules) != nil {
			missing = append(missing, f.name)
			if !slices.Contains(options, f.option) {
				options = append(options, f.option)
			}
		}
	}
	if len(missing) == 0 {
		return []Result{{Policies, Warn, fmt.Sprintf(NotEnforced+"the kernel rejects their rules (%v)", err),
			"use kernel 5.13 or later with nf_tables, and restart"}}
	}
	return []Result{{Policies, Warn, NotEnforced + "the kernel lacks " + strings.Join(missing, ", "),
		"use a kernel with " + strings.Join(options, ", ") + ", and restart"}}
}

// PolicyLog is the check of what the log of dropped packets needs. If it is not OK there is none.
const PolicyLog = "network policy log"

func checkPolicyLog(p probe) []Result {
	nft, err := p.look("nft")
	if err != nil {
		return nil // checkPacketFilter says so
	}
	err = p.isolated(func() error {
		_, err := p.run(inet+"add rule inet kubelith-check forward ct direction original limit rate 5/second log group 1 snaplen 128\n", nft, "-f", "-")
		return err
	})
	if err != nil {
		return []Result{{PolicyLog, Warn, "the kernel cannot report packets, so dropped ones are not logged",
			"use a kernel with CONFIG_NFT_LOG, CONFIG_NFT_LIMIT and CONFIG_NETFILTER_NETLINK_LOG, and restart"}}
	}
	return []Result{{Name: PolicyLog, Status: OK, Message: "the kernel reports dropped packets"}}
}
