package proxy

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/knftables"

	"kubelith.io/kubelith/base/nft"
)

// table is upstream's, of each family. When another program removes it, as `systemctl restart nftables` does, upstream
// notices that with the next change of a Service, or within an hour.
//
// Source: kubeProxyTable in k8s.io/kubernetes/pkg/proxy/nftables.
const table = "kube-proxy"

// lost reports whether one of the families has no table.
func lost(ctx context.Context, families []corev1.IPFamily) bool {
	for _, f := range families {
		family := knftables.IPv4Family
		if f == corev1.IPv6Protocol {
			family = knftables.IPv6Family
		}
		t, err := nft.Open(family, table)
		if err != nil {
			return false
		}
		if _, err := t.List(ctx, "chains"); knftables.IsNotFound(err) {
			return true
		}
	}
	return false
}
