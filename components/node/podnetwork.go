package node

import (
	"kubelith.io/kubelith/components/network"
	"kubelith.io/kubelith/runtime/cni"
)

// addPodNetwork adds the two components that connect pods: "cni" on this node, "network" with those of the others.
func (b *builder) addPodNetwork(n network.Options, c cni.Options) {
	between, err := network.New(n)
	if err != nil {
		b.add(nil, err)
		return
	}
	c.Mode = cniMode(string(n.Backend))
	c.MTU = func() int { return network.MTU(n.Backend, n.NodeIPs) }
	c.ThirdParty = between.ThirdParty
	b.add(cni.New(c), nil)
	b.add(between, nil)
}

// cniMode is what a value of the setting "network" means on one node: the backends differ only between nodes.
func cniMode(setting string) cni.Mode {
	switch network.Backend(setting) {
	case network.VXLAN, network.HostGW:
		return cni.Bridge
	}
	return cni.Mode(setting)
}
