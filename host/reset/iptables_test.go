package reset

import (
	"slices"
	"testing"

	"kubelith.io/kubelith/host/hosttest"
)

// TestKubeletChains: the kubelet's part of iptables is removed, with otherwise unused tables; others' rules, chains and
// policies stay.
func TestKubeletChains(t *testing.T) {
	chain := func(name, hook, policy string) string {
		return `{"chain":{"family":"ip","table":"t","name":"` + name + `","hook":"` + hook + `","policy":"` + policy + `"}}`
	}
	rule := func(chain, handle, target string) string {
		return `{"rule":{"family":"ip","table":"t","chain":"` + chain + `","handle":` + handle + `,"expr":[{"counter":{"packets":0,"bytes":0}},{"jump":{"target":"` + target + `"}}]}}`
	}
	tables := func() map[string]string {
		return map[string]string{
			"ip mangle":   `{"nftables":[` + chain("KUBE-IPTABLES-HINT", "", "") + "," + chain("KUBE-KUBELET-CANARY", "", "") + `]}`,
			"ip6 filter":  `{"nftables":[` + chain("INPUT", "input", "accept") + "," + chain("KUBE-FIREWALL", "", "") + "," + rule("INPUT", "4", "KUBE-FIREWALL") + "," + rule("KUBE-FIREWALL", "5", "x") + `]}`,
			"ip filter":   `{"nftables":[` + chain("INPUT", "input", "accept") + "," + chain("KUBE-FIREWALL", "", "") + "," + rule("INPUT", "4", "KUBE-FIREWALL") + "," + rule("INPUT", "6", "ufw-input") + `]}`,
			"ip nat":      `{"nftables":[` + chain("KUBE-KUBELET-CANARY", "", "") + "," + chain("DOCKER", "", "") + `]}`,
			"ip6 nat":     `{"nftables":[` + chain("POSTROUTING", "postrouting", "accept") + `]}`,
			"ip6 mangle":  `{"nftables":[` + chain("KUBE-KUBELET-CANARY", "", "") + "," + chain("INPUT", "input", "drop") + `]}`,
			"inet filter": `{"nftables":[` + chain("KUBE-FIREWALL", "", "") + `]}`,
		}
	}
	nets := &fakeNetwork{tables: tables()}
	r, _ := newTestReset(hosttest.New(t), nets)
	if errs := r.removeKubeletChains(t.Context()); len(errs) > 0 {
		t.Fatal(errs)
	}
	slices.Sort(nets.removed)
	want := []string{
		"delete chain ip filter KUBE-FIREWALL", "delete chain ip nat KUBE-KUBELET-CANARY", "delete chain ip6 mangle KUBE-KUBELET-CANARY",
		"delete rule ip filter INPUT handle 4", "delete table ip mangle", "delete table ip6 filter",
		"flush chain ip filter KUBE-FIREWALL", "flush chain ip nat KUBE-KUBELET-CANARY", "flush chain ip6 mangle KUBE-KUBELET-CANARY",
	}
	if !slices.Equal(nets.removed, want) {
		t.Errorf("got  %q\nwant %q", nets.removed, want)
	}
	for name, change := range map[string]func(*Reset){
		"another server":  func(r *Reset) { r.neighbour = func() bool { return true } },
		"another kubelet": func(r *Reset) { r.owned.kubelet = false },
	} {
		nets := &fakeNetwork{tables: tables()}
		r, _ := newTestReset(hosttest.New(t), nets)
		change(r)
		if r.removeKubeletChains(t.Context()); len(nets.removed) > 0 {
			t.Errorf("%s: %q", name, nets.removed)
		}
	}
}
