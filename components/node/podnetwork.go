package node

import (
	"kubelith.io/kubelith/components/worker/cni"
	"kubelith.io/kubelith/components/worker/network"
	"kubelith.io/kubelith/components/worker/podlink"
	"kubelith.io/kubelith/components/worker/policy"
)

// addPodNetwork adds the components that connect pods: "cni" and "podlink" on this node, "network" between nodes.
// With policies, "network-policy" guards them.
func (b *builder) addPodNetwork(n network.Options, c cni.Options, p podlink.Options, policies bool, np policy.Options) {
	between, err := network.New(n)
	if !b.check(err) {
		return
	}
	c.Mode = cniMode(string(n.Backend))
	c.MTU = func() int { return network.MTU(n.Backend, n.NodeIPs) }
	c.ThirdParty = between.ThirdParty
	if policies && c.Mode == cni.Bridge {
		guard := policy.New(np)
		c.ThirdParty = func(theirs bool) {
			between.ThirdParty(theirs)
			guard.ThirdParty(theirs)
		}
		p.Guard = guard
		b.with("network").add(guard)
	} else {
		b.with("network").add(policy.NewCleaner(np))
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
	case network.VXLAN, network.HostGW:
		return cni.Bridge
	}
	return cni.Mode(setting)
}
