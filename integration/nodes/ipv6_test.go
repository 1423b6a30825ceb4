package nodes

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestIPv6Only: a server and an agent without any IPv4 address but loopback's.
func TestIPv6Only(t *testing.T) {
	t.Parallel()
	only := func(s *harness.Server) error {
		s.NodeIP = s.NodeIP6
		out, err := s.Command("ip", "-4", "addr", "flush", "dev", "eth0").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
		return err
	}
	c := harness.StartCluster(t, harness.ClusterOptions{
		Agents: 1,
		Server: harness.Options{IPv6: true, Prepare: only, Args: []string{"--cluster-cidr=fd42::/56", "--service-cidr=fd43::/112"}},
		Agent:  harness.Options{IPv6: true, Prepare: only},
	})
	for _, n := range c.Nodes() {
		for _, a := range n.Node(t).Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && !ip.Is6() {
				t.Errorf("node %s has the address %s", n.NodeName(), a.Address)
			}
		}
		if got := strings.TrimSpace(n.Exec(t, "sh", "-c", "ip -4 -o addr | grep -v ' lo '; true")); got != "" {
			t.Errorf("node %s has IPv4: %s", n.NodeName(), got)
		}
	}
	s, ns := c.Server, c.Namespace(t)
	pods := everywhere(t, c, ns, "web")
	svc := service(t, c, ns, "web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeNodePort })
	for i, p := range pods {
		peer, node, dial := pods[1-i], c.NodeOf(t, p), within(t, c, p)
		before := node.LinkCounter(t, "flannel-v6.1", "tx_packets")
		got := dial.mustAsk(t, p.Name+" to "+peer.Name, peer.Status.PodIP, 8080)
		if got.From() != p.Status.PodIP {
			t.Errorf("%s saw %s, the client is %s", peer.Name, got.Remote, p.Status.PodIP)
		}
		if after := node.LinkCounter(t, "flannel-v6.1", "tx_packets"); before < 0 || after < before+4 {
			t.Errorf("flannel-v6.1 of %s counts %d packets before and %d after a request", node.NodeName(), before, after)
		}
		if links := node.Exec(t, "ip", "-o", "link", "show", "type", "vxlan"); strings.Contains(links, " flannel.1:") {
			t.Errorf("node %s has a device for IPv4: %s", node.NodeName(), links)
		}
		dial.mustReachAll(t, "the Service from "+p.Name, svc.Spec.ClusterIP, 80, pods)
		for _, network := range []string{"udp", "tcp"} {
			harness.Eventually(t, 30*time.Second, "the Service's name over "+network, func() error {
				m, err := harness.QueryDNS(dial, network, "[fd43::a]:53", "web."+zone(ns), dns.TypeAAAA)
				if err != nil {
					return err
				}
				if len(m.Answer) != 1 || m.Answer[0].(*dns.AAAA).AAAA.String() != svc.Spec.ClusterIP {
					return fmt.Errorf("the answer is %v, not %s", m.Answer, svc.Spec.ClusterIP)
				}
				return nil
			})
		}
		if conf := s.PodExec(t, p, "main", "cat", "/etc/resolv.conf"); !strings.Contains(conf, "nameserver fd43::a\n") {
			t.Errorf("resolv.conf of %s: %s", p.Name, conf)
		}
		dialer(outside).mustReachAll(t, "the port at "+node.NodeIP, node.NodeIP, int(svc.Spec.Ports[0].NodePort), pods)
	}

	// Nothing reaches the agent's pod but from pods with the label.
	policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}},
		}}},
	}}
	friend := s.WaitRunning(t, s.Create(t, on(s, web(ns, "friend", "friend"))))
	if _, err := s.Client(t).NetworkingV1().NetworkPolicies(ns).Create(t.Context(), policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	there := pods[1].Status.PodIP
	harness.Eventually(t, 30*time.Second, "the policy to hold", func() error {
		if a, err := within(t, c, pods[0]).ask(there, 8080); err == nil {
			return errors.New("it answers: " + a.Hostname)
		}
		return nil
	})
	within(t, c, friend).mustAsk(t, "the friend to the agent's pod", there, 8080)
}
