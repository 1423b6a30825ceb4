package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/dns"
	"kubelith.io/kubelith/components/nodeaddr"
	"kubelith.io/kubelith/components/servicelb"
)

// The ports that no flag of Kubelith's changes.
const (
	proxyHealthPort = 10256
	vxlanPort       = 8472
)

// addServiceLB adds the Service load balancer or, when it is disabled, what takes its addresses back.
func addServiceLB(b *builder, cfg *config.Server, o servicelb.Options) {
	o.ServerPorts = []servicelb.Port{{Protocol: corev1.ProtocolTCP, Number: int32(cfg.HTTPSPort)}}
	o.NodePorts = []servicelb.Port{
		{Protocol: corev1.ProtocolTCP, Number: proxyHealthPort},
		{Protocol: corev1.ProtocolTCP, Number: dns.DefaultPort},
		{Protocol: corev1.ProtocolUDP, Number: dns.DefaultPort},
		{Protocol: corev1.ProtocolUDP, Number: vxlanPort},
	}
	o.Addresses = nodeAddresses(cfg)
	if cfg.Disabled("servicelb") {
		b.elect(servicelb.NewCleaner(o), nil)
		return
	}
	b.elect(servicelb.New(o), nil)
}

// nodeAddresses are what the addresses of nodes are held against.
func nodeAddresses(cfg *config.Server) nodeaddr.Rules {
	rules := nodeaddr.Parse(slices.Concat(cfg.ClusterCIDR, cfg.ServiceCIDR), append([]string{cfg.AdvertiseAddress}, cfg.TLSSAN...))
	rules.APIPort = uint16(cfg.HTTPSPort)
	return rules
}
