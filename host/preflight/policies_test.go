package preflight

import (
	"errors"
	"strings"
	"testing"
)

// TestPolicies: what a kernel lacks is named, with what to do. Such a kernel rejects what uses the feature.
func TestPolicies(t *testing.T) {
	for name, tc := range map[string]struct {
		rejects string
		want    string
	}{
		"a whole kernel": {"nothing", "ok       network policies: the kernel has what they need"},
		"no bridge":      {"table bridge", "warning  network policies: not enforced on this node, the kernel lacks nftables family bridge: use a kernel with CONFIG_NF_TABLES_BRIDGE, and restart"},
		"no inet":        {"table inet", "warning  network policies: not enforced on this node, the kernel lacks nftables family inet: use a kernel with CONFIG_NF_TABLES_INET, and restart"},
		"no conntrack":   {"ct original", "warning  network policies: not enforced on this node, the kernel lacks conntrack expressions: use a kernel with CONFIG_NFT_CT, and restart"},
		"another reason": {"whole", "warning  network policies: not enforced on this node, the kernel rejects their rules (rejected): use kernel 5.13 or later with nf_tables, and restart"},
	} {
		t.Run(name, func(t *testing.T) {
			_, p := goodHost(t)
			p.run = func(stdin, _ string, _ ...string) (string, error) {
				if strings.Contains(stdin, tc.rejects) {
					return "", errors.New("rejected")
				}
				return "", nil
			}
			whole := "# whole\n"
			for _, f := range policyFeatures {
				whole += f.rules
			}
			results := check(Options{PolicyRules: whole}, p)
			if got := results[len(results)-1].String(); got != tc.want {
				t.Errorf("%s\nwant\n%s", got, tc.want)
			}
		})
	}
}

// TestPolicyLog: a kernel that cannot report packets enforces policies all the same.
func TestPolicyLog(t *testing.T) {
	_, p := goodHost(t)
	for _, works := range []bool{true, false} {
		p.run = func(stdin, _ string, _ ...string) (string, error) {
			if !works && strings.Contains(stdin, " log group ") {
				return "", errors.New("rejected")
			}
			return "", nil
		}
		results := check(Options{PolicyRules: "rules", PolicyLog: true}, p)
		policies, log := results[len(results)-2], results[len(results)-1]
		if want := map[bool]Status{true: OK, false: Warn}[works]; policies.Status != OK || log.Status != want || log.Name != PolicyLog {
			t.Errorf("works %v: %v, %v", works, policies, log)
		}
	}
}
