package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"
)

// clusterPolicyOf reads the spec of a policy, with more of it than the type has.
func clusterPolicyOf(t *testing.T, name, spec string) *policyv1alpha2.ClusterNetworkPolicy {
	t.Helper()
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := yaml.Unmarshal([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

func nodeNamed(name, os string, ips ...string) *Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"os": os}}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, ip := range ips {
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip})
	}
	return NodeOf(n)
}

func TestClusterPolicies(t *testing.T) {
	type probe struct {
		from, to string
		protocol corev1.Protocol
		port     uint16
		want     Verdict
	}
	const (
		tcp, udp, sctp = corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP

		all    = "subject: {namespaces: {}}\n"
		fromY  = "from: [{namespaces: {matchLabels: {ns: \"y\"}}}]"
		toY    = "to: [{namespaces: {matchLabels: {ns: \"y\"}}}]"
		dns    = "to: [{pods: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}}]"
		admin  = "tier: Admin\npriority: 10\n" + all
		base   = "tier: Baseline\npriority: 10\n" + all
		denied = "podSelector: {}\npolicyTypes: [Ingress]"
	)
	for name, c := range map[string]struct {
		cluster  []string // named a, b, ...
		policies []string
		fails    string // what the error says
		probes   []probe
	}{
		"deny": {[]string{admin + "ingress: [{action: Deny, " + fromY + "}]"}, nil, "", []probe{
			{"y/a", "x/a", tcp, 80, Deny}, {"y/a", "x/a", "ICMP", 0, Deny}, {"x/b", "x/a", tcp, 80, Allow}, {"192.0.2.7", "x/a", udp, 1, Allow},
			{"x/a", "y/a", tcp, 80, Allow}, {"y/a", "y/b", sctp, 1, Deny},
		}},
		"the first rule counts": {[]string{admin + "ingress: [{action: Accept, " + fromY + ", protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Deny, " + fromY + "}, {action: Accept, " + fromY + "}]"}, nil, "", []probe{
			{"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 81, Deny}, {"y/a", "x/a", udp, 80, Deny},
		}},
		"the lower number counts": {[]string{
			"tier: Admin\npriority: 20\n" + all + "ingress: [{action: Deny, " + fromY + "}]",
			"tier: Admin\npriority: 3\n" + all + "ingress: [{action: Accept, " + fromY + ", protocols: [{udp: {destinationPort: {range: {start: 5, end: 7}}}}]}]",
		}, nil, "", []probe{{"y/a", "x/a", udp, 4, Deny}, {"y/a", "x/a", udp, 5, Allow}, {"y/a", "x/a", udp, 7, Allow}, {"y/a", "x/a", udp, 8, Deny}, {"y/a", "x/a", tcp, 5, Deny}}},
		"of equal priorities the first name counts": {[]string{
			admin + "ingress: [{action: Deny, " + fromY + "}]",
			admin + "ingress: [{action: Accept, " + fromY + "}]",
		}, nil, "", []probe{{"y/a", "x/a", tcp, 80, Deny}}},
		"of equal priorities the first name counts, also if it accepts": {[]string{
			admin + "ingress: [{action: Accept, " + fromY + "}]",
			admin + "ingress: [{action: Deny, " + fromY + "}]",
		}, nil, "", []probe{{"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", "ICMP", 0, Allow}}},
		"an admin's accept against a baseline's deny and a NetworkPolicy": {[]string{
			admin + "ingress: [{action: Accept, " + fromY + "}]",
			base + "ingress: [{action: Deny, from: [{namespaces: {}}]}]",
		}, []string{"podSelector: {matchLabels: {app: a}}\npolicyTypes: [Ingress]"}, "", []probe{{"y/a", "x/a", tcp, 80, Allow}, {"x/b", "x/a", tcp, 80, Deny}, {"x/a", "x/b", tcp, 80, Deny}}},
		"an admin's deny against a baseline's accept and a NetworkPolicy": {[]string{
			admin + "ingress: [{action: Deny, " + fromY + "}]",
			base + "ingress: [{action: Accept, " + fromY + "}]",
		}, []string{"podSelector: {}\ningress: [{}]"}, "", []probe{{"y/a", "x/a", tcp, 80, Deny}, {"x/b", "x/a", tcp, 80, Allow}}},
		"admins before NetworkPolicies": {[]string{admin + "ingress: [{action: Accept, " + fromY + ", protocols: [{tcp: {destinationPort: {number: 80}}}]}]"}, []string{denied}, "", []probe{
			{"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 81, Deny}, {"x/b", "x/a", tcp, 80, Deny},
		}},
		"pass to NetworkPolicies": {[]string{
			"tier: Admin\npriority: 1\n" + all + "ingress: [{action: Pass, " + fromY + ", protocols: [{tcp: {destinationPort: {number: 80}}}, {tcp: {destinationPort: {number: 81}}}]}]",
			admin + "ingress: [{action: Deny, " + fromY + "}]",
		}, []string{"podSelector: {matchLabels: {app: a}}\ningress: [{ports: [{port: 80}, {port: 82}]}]"}, "", []probe{
			{"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 81, Deny}, {"y/a", "x/a", tcp, 82, Deny}, {"y/a", "x/b", tcp, 81, Allow}, {"x/b", "x/a", tcp, 82, Allow},
		}},
		"pass to the baseline": {[]string{
			admin + "ingress: [{action: Pass, " + fromY + ", protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Accept, " + fromY + "}]",
			base + "ingress: [{action: Deny, " + fromY + "}]",
		}, nil, "", []probe{{"y/a", "x/a", tcp, 80, Deny}, {"y/a", "x/a", tcp, 81, Allow}}},
		"pass in the baseline": {[]string{base + "ingress: [{action: Pass, " + fromY + "}, {action: Deny, " + fromY + "}]"}, nil, "", []probe{{"y/a", "x/a", tcp, 80, Allow}}},
		"NetworkPolicies before the baseline": {[]string{base + "ingress: [{action: Deny, from: [{namespaces: {}}]}]\negress: [{action: Accept, " + toY + "}]"},
			[]string{"podSelector: {matchLabels: {app: a}}\ningress: [{from: [{namespaceSelector: {matchLabels: {ns: \"y\"}}}]}]"}, "", []probe{
				{"y/a", "x/a", tcp, 80, Allow}, {"x/b", "x/a", tcp, 80, Deny}, {"y/a", "x/b", tcp, 80, Deny}, {"192.0.2.7", "x/b", tcp, 80, Allow}, {"192.0.2.7", "x/a", tcp, 80, Deny},
			}},
		"pods as subject and peers": {[]string{"tier: Admin\npriority: 0\nsubject: {pods: {namespaceSelector: {matchLabels: {ns: x}}, podSelector: {matchLabels: {app: a}}}}\n" +
			"egress: [{action: Deny, to: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}]}]"}, nil, "", []probe{
			{"x/a", "y/b", tcp, 80, Deny}, {"x/a", "x/b", tcp, 80, Deny}, {"x/a", "y/a", tcp, 80, Allow}, {"x/b", "y/b", tcp, 80, Allow}, {"x/a", "192.0.2.7", tcp, 80, Allow},
		}},
		"named ports": {[]string{admin + "ingress: [{action: Deny, from: [{namespaces: {}}], protocols: [{destinationNamedPort: web}]}]\negress: [{action: Deny, to: [{namespaces: {}}], protocols: [{destinationNamedPort: dns}]}]"}, nil, "", []probe{
			{"x/a", "y/a", tcp, 8000 + 'a', Deny}, {"x/a", "y/a", tcp, 8000 + 'b', Allow}, {"x/a", "y/b", tcp, 8000 + 'b', Deny}, {"x/a", "y/a", udp, 8000 + 'a', Allow},
			{"x/a", "192.0.2.1", udp, 10053, Deny}, {"x/a", "192.0.2.1", tcp, 10053, Allow},
		}},
		"networks, pods included": {[]string{admin + "egress: [{action: Accept, to: [{networks: [10.42.0.4/32, \"fd00::/8\"]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"}, nil, "", []probe{
			{"x/a", "y/a", tcp, 80, Allow}, {"x/a", "y/b", tcp, 80, Deny}, {"x/a", "198.51.100.1", udp, 80, Deny}, {"x/a", "fd00::1", udp, 80, Allow}, {"x/a", "2001:db8::1", udp, 80, Allow},
		}},
		"nodes": {[]string{admin + "egress: [{action: Accept, to: [{nodes: {matchLabels: {os: linux}}}], protocols: [{tcp: {destinationPort: {number: 80}}}]}, {action: Deny, to: [{nodes: {}}, {namespaces: {matchLabels: {ns: \"y\"}}}]}]"}, nil, "", []probe{
			{"x/a", "192.0.2.1", tcp, 80, Allow}, {"x/a", "192.0.2.1", tcp, 81, Deny}, {"x/a", "192.0.2.2", tcp, 80, Deny}, {"x/a", "2001:db8::2", "ICMP", 0, Deny},
			{"x/a", "192.0.2.3", tcp, 80, Allow}, {"x/a", "y/a", tcp, 80, Deny}, {"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "x/b", tcp, 80, Allow},
		}},
		"DNS denied": {[]string{admin + "egress: [{action: Deny, " + dns + "}]"}, nil, "", []probe{
			{"x/a", "192.0.2.1", udp, 10053, Deny}, {"x/a", "192.0.2.1", tcp, 10053, Deny}, {"x/a", "192.0.2.1", tcp, 6443, Allow},
		}},
		"DNS accepted": {[]string{admin + "egress: [{action: Accept, " + dns + "}, {action: Deny, to: [{namespaces: {}}, {nodes: {}}, {networks: [0.0.0.0/0, \"::/0\"]}]}]"}, nil, "", []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 6443, Deny}, {"x/a", "y/a", tcp, 80, Deny},
		}},
		"an unknown peer is not accepted": {[]string{admin + "egress: [{action: Accept, to: [{namespaces: {}}, {galaxies: {}}]}, {action: Deny, " + toY + "}]"}, nil, "egress rule 1, accepts nothing: a field of an unknown version", []probe{
			{"x/a", "y/a", tcp, 80, Deny}, {"x/a", "x/b", tcp, 80, Allow},
		}},
		"an unknown peer is denied": {[]string{admin + "egress: [{action: Pass, to: [{galaxies: {}}]}]"}, nil, "egress rule 1, denies everything: a field of an unknown version", []probe{
			{"x/a", "y/a", tcp, 80, Deny}, {"x/a", "192.0.2.7", "ICMP", 0, Deny},
		}},
		"an unknown protocol is denied": {[]string{admin + "ingress: [{name: quick, action: Deny, " + fromY + ", protocols: [{tcp: {destinationPort: {number: 80}}}, {quic: {}}]}]"}, nil, "ingress rule 1 (quick), denies everything", []probe{
			{"192.0.2.7", "x/a", udp, 9, Deny},
		}},
		"an unknown action denies": {[]string{admin + "ingress: [{action: Log, " + fromY + "}]"}, nil, "denies everything", []probe{{"192.0.2.7", "x/a", udp, 9, Deny}}},
		"names of domains":         {[]string{admin + "egress: [{action: Accept, to: [{domainNames: [example.com]}]}, {action: Deny, to: [{networks: [0.0.0.0/0]}]}]"}, nil, "accepts nothing: domainNames are not supported", []probe{{"x/a", "192.0.2.7", tcp, 443, Deny}}},
		"an unknown subject":       {[]string{"tier: Admin\nsubject: {galaxies: {}}\ningress: [{action: Deny, " + fromY + "}]"}, nil, "applies to no pod", []probe{{"y/a", "x/a", tcp, 80, Allow}}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, c.policies...)
			cluster.SetNode(nodeNamed("n1", "linux", "192.0.2.1", "2001:db8::1"))
			cluster.SetNode(nodeNamed("n2", "other", "192.0.2.2", "2001:db8::2"))
			var said []string
			for i := range c.cluster {
				i = len(c.cluster) - 1 - i // the order in which they come does not matter
				for _, err := range cluster.SetClusterPolicy(clusterPolicyOf(t, string(rune('a'+i)), c.cluster[i])) {
					said = append(said, err.Error())
				}
			}
			if all := strings.Join(said, "\n"); (c.fails == "") != (all == "") || !strings.Contains(all, c.fails) {
				t.Errorf("errors %q, want %q", all, c.fails)
			}
			for _, p := range c.probes {
				if got := cluster.verdict(t, p.from, p.to, p.protocol, p.port); got != p.want {
					t.Errorf("%s to %s %s/%d: %s, want %s", p.from, p.to, p.protocol, p.port, got, p.want)
				}
			}
		})
	}
}

func TestClusterPolicyExplained(t *testing.T) {
	c := newCluster(t, "podSelector: {}\ningress: [{ports: [{port: 80}]}]")
	c.SetClusterPolicy(clusterPolicyOf(t, "top", "tier: Admin\npriority: 1\nsubject: {namespaces: {}}\ningress: [{name: not b, action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {matchLabels: {app: b}}}}]}, {action: Pass, from: [{namespaces: {}}]}]"))
	c.SetClusterPolicy(clusterPolicyOf(t, "ground", "tier: Baseline\npriority: 1\nsubject: {namespaces: {}}\ningress: [{action: Deny, from: [{namespaces: {}}]}]"))
	for _, w := range []struct {
		from, to string
		port     uint16
		says     string
	}{
		{"y/b", "x/a", 80, "ingress: deny by ClusterNetworkPolicy top, ingress rule 1 (not b)"},
		{"y/a", "x/a", 80, "ingress: allow by NetworkPolicy x/p48, ingress rule 1"},
		{"y/a", "x/a", 81, "ingress: deny, no rule of NetworkPolicy x/p48, ClusterNetworkPolicy top and ClusterNetworkPolicy ground matches"},
		{"x/a", "y/a", 80, "ingress: deny by ClusterNetworkPolicy ground, ingress rule 1"},
	} {
		reason, err := c.Explain(podNamed(w.to).UID, Ingress, c.ips[w.from], corev1.ProtocolTCP, w.port)
		if err != nil || reason.String() != w.says {
			t.Errorf("%s to %s:%d: %q, %v, want %q", w.from, w.to, w.port, reason, err, w.says)
		}
	}
}

// TestClusterPolicyChanges: what Take returns over time is, together, what All returns, and nothing is left at the end.
func TestClusterPolicyChanges(t *testing.T) {
	c := newCluster(t)
	table := newModel()
	classes := func() (names []string) {
		for class := range table.classes {
			names = append(names, class.Name)
		}
		slices.Sort(names)
		return names
	}
	step := func(what string, changes bool) {
		t.Helper()
		before := fmt.Sprint(classes())
		table.apply(t, c.Take())
		want := newModel()
		want.apply(t, c.All())
		if got, want := table.String(), want.String(); got != want {
			t.Errorf("%s: the table is\n%s\nwant\n%s", what, got, want)
		}
		if changed := before != fmt.Sprint(classes()); changed != changes {
			t.Errorf("%s: other classes: %t, want %t", what, changed, changes)
		}
	}
	const spec = "tier: Admin\npriority: %d\nsubject: {namespaces: {matchLabels: {ns: x}}}\negress: [{action: Deny, to: [{nodes: {matchLabels: {os: linux}}}]}]"
	step("at first", false)
	c.SetClusterPolicy(clusterPolicyOf(t, "p", fmt.Sprintf(spec, 5)))
	step("a policy", true)
	if c.Policies() != 1 || !c.NeedsNodes() {
		t.Errorf("%d policies, about nodes: %t", c.Policies(), c.NeedsNodes())
	}
	c.SetClusterPolicy(clusterPolicyOf(t, "p", fmt.Sprintf(spec, 5)))
	step("the same again", false)
	c.SetClusterPolicy(clusterPolicyOf(t, "p", fmt.Sprintf(spec, 6)))
	step("another priority", true)
	c.SetNode(nodeNamed("n", "linux", "192.0.2.9"))
	step("a node", true)
	denied := func(ip string) bool { return c.verdict(t, "x/a", ip, corev1.ProtocolTCP, 80) == Deny }
	if !denied("192.0.2.9") || denied("192.0.2.10") {
		t.Error("the rule does not know the node's address")
	}
	c.SetNode(nodeNamed("n", "linux", "192.0.2.9"))
	c.SetNode(nodeNamed("m", "other", "192.0.2.10"))
	step("one without the label", false)
	c.SetNode(nodeNamed("n", "linux", "192.0.2.11"))
	step("another address", true)
	if denied("192.0.2.9") || !denied("192.0.2.11") {
		t.Error("the rule does not follow the node's address")
	}
	c.DeleteNode("n")
	step("the node is gone", true)
	c.DeleteClusterPolicy("p")
	step("the policy is gone", true)
	if all := c.All(); !all.Empty() || c.Policies() != 0 {
		t.Errorf("without policies there is %+v", all)
	}
}
