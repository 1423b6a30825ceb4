package node

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/worker/cni"
	"kubelith.io/kubelith/components/worker/network"
	"kubelith.io/kubelith/components/worker/podlink"
	"kubelith.io/kubelith/components/worker/policy"
	componentstatus "kubelith.io/kubelith/components/worker/status"
	"kubelith.io/kubelith/host/preflight"
)

// policies records whether this node enforces network policies, and reports it on the Node.
type policies struct {
	status  *componentstatus.Observer
	reason  string // of the condition
	without string // why they are not enforced; empty if they are
}

// Reasons of the condition names.PolicyCondition.
const (
	policiesEnforced    = "Enforced"
	policiesDisabled    = "Disabled"
	policiesUnsupported = "KernelLacksFeature"
)

func (h *machine) policies(cfg *config.Node) policies {
	out := policies{status: h.status, reason: policiesEnforced}
	for _, r := range h.checks {
		if r.Name == preflight.Policies && r.Status != preflight.OK {
			out.reason, out.without = policiesUnsupported, strings.TrimPrefix(r.Message, preflight.NotEnforced)
		}
	}
	if cfg.Disabled("network-policy") {
		out.reason, out.without = policiesDisabled, "--disable network-policy"
	}
	return out
}

// policyLog returns how many dropped packets are logged a second, as far as the kernel reports any.
func (h *machine) policyLog(cfg *config.Node) int {
	for _, r := range h.checks {
		if r.Name == preflight.PolicyLog && r.Status != preflight.OK {
			return 0
		}
	}
	return cfg.NetworkPolicyLog
}

// thirdParty reports the policies of a node whose pod network is ours, or not.
func (p policies) thirdParty(theirs bool) {
	switch {
	case theirs:
		p.status.Policies("", "", "")
	case p.without != "":
		p.status.Policies(corev1.ConditionFalse, p.reason, p.without)
	default:
		p.status.Policies(corev1.ConditionTrue, p.reason, "network policies are enforced")
	}
}

// addPodNetwork adds the components that connect pods: "cni" and "podlink" on this node, "network" between nodes.
// With policies, "network-policy" guards them.
func (b *builder) addPodNetwork(n network.Options, c cni.Options, p podlink.Options, enforced policies, np policy.Options) {
	between, err := network.New(n)
	if !b.check(err) {
		return
	}
	c.Mode = cniMode(string(n.Backend))
	c.MTU = func() int { return network.MTU(n.Backend, n.NodeIPs) }
	followers := []func(theirs bool){between.ThirdParty}
	if c.Mode == cni.Bridge {
		followers = append(followers, enforced.thirdParty)
	}
	if enforced.without == "" && c.Mode == cni.Bridge {
		guard := policy.New(np)
		followers = append(followers, guard.ThirdParty)
		p.Guard = guard
		b.with("network").add(guard)
	} else {
		b.with("network").add(policy.NewCleaner(np))
	}
	c.ThirdParty = func(theirs bool) {
		for _, tell := range followers {
			tell(theirs)
		}
	}
	b.with("network").add(cni.New(c)) // one setting for all
	if c.Mode == cni.Bridge {
		b.with("network").add(podlink.New(p))
	}
	b.with("containerd").add(between)
}

// cniMode returns what a value of the setting "network" means on one node: the backends differ only between nodes.
func cniMode(setting string) cni.Mode {
	switch network.Backend(setting) {
	case network.VXLAN, network.HostGW, network.WireGuard:
		return cni.Bridge
	}
	return cni.Mode(setting)
}
