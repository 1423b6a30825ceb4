package nodes

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestDualStack: two nodes, both families, by vxlan.
func TestDualStack(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{
		Agents: 1,
		Server: harness.Options{IPv6: true, Args: []string{"--cluster-cidr=10.42.0.0/16,fd42::/56", "--service-cidr=10.43.0.0/16,fd43::/112"}},
		Agent:  harness.Options{IPv6: true},
	})
	ns := c.Namespace(t)
	pods := everywhere(t, c, ns, "web")
	both := corev1.IPFamilyPolicyRequireDualStack
	svc := service(t, c, ns, "web", func(svc *corev1.Service) {
		svc.Spec.Type, svc.Spec.IPFamilyPolicy = corev1.ServiceTypeNodePort, &both
	})
	for i, p := range pods {
		peer := pods[1-i]
		dial := within(t, c, p)
		for family, link := range []string{"flannel.1", "flannel-v6.1"} {
			if len(peer.Status.PodIPs) != 2 {
				t.Fatalf("pod %s has the addresses %v", peer.Name, peer.Status.PodIPs)
			}
			node := c.NodeOf(t, p)
			before := node.LinkCounter(t, link, "tx_packets")
			got := dial.mustAsk(t, fmt.Sprintf("%s to %s by %s", p.Name, peer.Name, link), peer.Status.PodIPs[family].IP, 8080)
			if got.From() != p.Status.PodIPs[family].IP {
				t.Errorf("%s saw %s, the client is %v", peer.Name, got.Remote, p.Status.PodIPs)
			}
			if after := node.LinkCounter(t, link, "tx_packets"); before < 0 || after < before+4 {
				t.Errorf("%s of %s counts %d packets before and %d after a request", link, node.NodeName(), before, after)
			}
			dial.mustReachAll(t, "the Service from "+p.Name, svc.Spec.ClusterIPs[family], 80, pods)
		}
		harness.Eventually(t, 30*time.Second, "the IPv6 address of the Service", func() error {
			got, err := dial.lookup("udp", "web."+zone(ns), dns.TypeAAAA)
			if err == nil && (len(got) != 1 || netip.MustParseAddr(got[0]) != netip.MustParseAddr(svc.Spec.ClusterIPs[1])) {
				err = fmt.Errorf("the answer is %v, not %s", got, svc.Spec.ClusterIPs[1])
			}
			return err
		})
	}
	for _, n := range c.Nodes() {
		for _, ip := range []string{n.NodeIP, n.NodeIP6} {
			dialer(outside).mustReachAll(t, "the port at "+ip, ip, int(svc.Spec.Ports[0].NodePort), pods)
		}
	}
}
