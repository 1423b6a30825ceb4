package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

// cluster is a compiler with two namespaces and a pod for each name: namespace/name, whose label app is its name.
type cluster struct {
	*Compiler
	ips map[string]netip.Addr
}

func newCluster(t *testing.T, policies ...string) *cluster {
	t.Helper()
	c := &cluster{NewCompiler(), map[string]netip.Addr{}}
	c.SetNamespace("x", map[string]string{"ns": "x"})
	c.SetNamespace("y", map[string]string{"ns": "y"})
	c.SetNamespace("kube-system", map[string]string{corev1.LabelMetadataName: "kube-system"})
	c.SetServices([]Service{{
		Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"},
		Ports: []NamedPort{{"dns", "UDP", 53}, {"dns-tcp", "TCP", 53}}, Target: 10053,
		Endpoints: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Addresses: []netip.Addr{netip.MustParseAddr("10.43.0.10")},
	}})
	for i, name := range []string{"x/a", "x/b", "y/a", "y/b"} {
		c.ips[name] = netip.MustParseAddr(fmt.Sprintf("10.42.0.%d", i+2))
		c.SetPod(podNamed(name, c.ips[name]))
		c.AddLocal(types.UID(name), []netip.Addr{c.ips[name]})
	}
	for _, p := range policies {
		for _, err := range c.SetPolicy(policyOf(t, p)) {
			t.Error(err)
		}
	}
	return c
}

func podNamed(name string, ips ...netip.Addr) *Pod {
	return &Pod{
		Namespace: name[:1], Name: name[2:], UID: types.UID(name), Labels: map[string]string{"app": name[2:]}, IPs: ips,
		Ports: []NamedPort{{"web", "TCP", 8000 + uint16(name[2])}},
	}
}

func policyOf(t *testing.T, spec string) *networkingv1.NetworkPolicy {
	t.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: fmt.Sprintf("p%d", len(spec))}}
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		t.Fatal(err)
	}
	return p
}

// verdict is that of the tables on a connection, both directions together.
func (c *cluster) verdict(t *testing.T, from, to string, protocol corev1.Protocol, port uint16) Verdict {
	t.Helper()
	address := func(name string) netip.Addr {
		if ip, known := c.ips[name]; known {
			return ip
		}
		return netip.MustParseAddr(name)
	}
	all := c.All()
	of := func(d Direction, subject, peer netip.Addr) Verdict {
		name := all.Selected[d][subject]
		if name == "" {
			return Allow
		}
		i := slices.IndexFunc(all.New, func(c *Class) bool { return c.Name == name })
		if i < 0 {
			return Deny // closed
		}
		class := all.New[i]
		for _, d := range all.Peers[class] {
			if !class.HasPorts() && !d.Uniform() {
				t.Errorf("%s has no ports, but a peer with %v", class.Name, d.Ports)
			}
		}
		if d := all.Peers[class][peer]; d != nil {
			return d.at(protocol, port)
		}
		for _, b := range class.Blocks {
			if b.Range.Contains(peer) {
				return b.Decision.at(protocol, port)
			}
		}
		return class.Final
	}
	source, destination := address(from), address(to)
	verdict := Allow
	if of(Egress, source, destination) == Deny || of(Ingress, destination, source) == Deny {
		verdict = Deny
	}
	explained := Allow
	for _, d := range []Direction{Egress, Ingress} {
		subject, peer := types.UID(from), destination
		if d == Ingress {
			subject, peer = types.UID(to), source
		}
		if c.Knows(subject) {
			reason, err := c.Explain(subject, d, peer, protocol, port)
			if err != nil {
				t.Fatal(err)
			}
			if reason.Verdict == Deny {
				explained = Deny
			}
		}
	}
	if explained != verdict {
		t.Errorf("%s to %s %s/%d: the table says %s, its explanation %s", from, to, protocol, port, verdict, explained)
	}
	return verdict
}

func TestPolicies(t *testing.T) {
	type probe struct {
		from, to string
		protocol corev1.Protocol
		port     uint16
		want     Verdict
	}
	const tcp, udp, sctp = corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	for name, c := range map[string]struct {
		policies []string
		probes   []probe
	}{
		"none": {nil, []probe{{"x/a", "y/b", tcp, 80, Allow}, {"192.0.2.7", "x/a", udp, 1, Allow}}},
		"deny ingress": {[]string{"podSelector: {}\npolicyTypes: [Ingress]"}, []probe{
			{"y/a", "x/a", tcp, 80, Deny}, {"x/b", "x/a", sctp, 80, Deny}, {"192.0.2.7", "x/b", udp, 53, Deny}, {"x/a", "y/a", tcp, 80, Allow},
			{"y/a", "x/a", "ICMP", 0, Deny},
		}},
		"the default of policyTypes": {[]string{"podSelector: {}\negress: [{ports: [{port: 80}]}]"}, []probe{
			{"x/a", "y/a", tcp, 80, Allow}, {"x/a", "y/a", tcp, 81, Deny}, {"y/a", "x/a", tcp, 80, Deny},
		}},
		"pods of the namespace": {[]string{"podSelector: {matchLabels: {app: a}}\ningress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]"}, []probe{
			{"x/b", "x/a", tcp, 80, Allow}, {"y/b", "x/a", tcp, 80, Deny}, {"y/b", "x/b", tcp, 80, Allow}, {"x/b", "x/a", "ICMP", 0, Allow},
		}},
		"pods of namespaces": {[]string{"podSelector: {}\ningress: [{from: [{namespaceSelector: {matchLabels: {ns: \"y\"}}, podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [a]}]}}]}]"}, []probe{
			{"y/b", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 80, Deny}, {"x/b", "x/a", tcp, 80, Deny},
		}},
		"ports": {[]string{"podSelector: {}\ningress: [{ports: [{port: 80, endPort: 90}, {protocol: UDP}, {port: 7, protocol: SCTP}]}]"}, []probe{
			{"y/a", "x/a", tcp, 79, Deny}, {"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 90, Allow}, {"y/a", "x/a", tcp, 91, Deny},
			{"192.0.2.7", "x/a", udp, 65535, Allow}, {"192.0.2.7", "x/a", sctp, 7, Allow}, {"192.0.2.7", "x/a", sctp, 8, Deny}, {"y/a", "x/a", "ICMP", 0, Deny},
		}},
		"named ports": {[]string{"podSelector: {}\npolicyTypes: [Ingress, Egress]\ningress: [{ports: [{port: web}]}]\negress: [{to: [{namespaceSelector: {}}], ports: [{port: web}]}]"}, []probe{
			{"y/a", "x/a", tcp, 8000 + 'a', Allow}, {"y/a", "x/a", tcp, 8000 + 'b', Deny}, {"y/a", "x/b", tcp, 8000 + 'b', Allow},
			{"x/a", "y/b", tcp, 8000 + 'b', Allow}, {"x/a", "y/b", tcp, 8000 + 'a', Deny}, {"x/a", "192.0.2.7", tcp, 8000 + 'a', Deny},
		}},
		"blocks": {[]string{"podSelector: {}\negress: [{to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.128/25]}}], ports: [{port: 80}]}, {to: [{ipBlock: {cidr: 192.0.2.200/32}}]}, {to: [{ipBlock: {cidr: 10.42.0.4/31}}]}]\npolicyTypes: [Egress]"}, []probe{
			{"x/a", "192.0.2.5", tcp, 80, Allow}, {"x/a", "192.0.2.5", tcp, 81, Deny}, {"x/a", "192.0.2.129", tcp, 80, Deny},
			{"x/a", "192.0.2.200", udp, 9, Allow}, {"x/a", "198.51.100.1", tcp, 80, Deny}, {"x/a", "y/a", tcp, 80, Allow}, {"x/a", "y/b", tcp, 80, Allow}, {"x/a", "x/b", tcp, 80, Deny},
		}},
		"two policies": {[]string{"podSelector: {}\ningress: [{ports: [{port: 80}]}]", "podSelector: {matchLabels: {app: a}}\ningress: [{ports: [{port: 443}]}]"}, []probe{
			{"y/a", "x/a", tcp, 80, Allow}, {"y/a", "x/a", tcp, 443, Allow}, {"y/a", "x/b", tcp, 443, Deny}, {"y/a", "x/a", tcp, 22, Deny},
		}},
		"DNS by its labels": {[]string{"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}], ports: [{port: 53, protocol: UDP}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Deny}, {"x/a", "192.0.2.1", tcp, 6443, Deny}, {"x/a", "192.0.2.2", udp, 10053, Deny},
		}},
		"DNS without ports": {[]string{"podSelector: {}\npolicyTypes: [Egress, Ingress]\negress: [{to: [{namespaceSelector: {}}]}]\ningress: [{from: [{namespaceSelector: {}}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 22, Deny}, {"192.0.2.1", "x/a", tcp, 10053, Deny},
		}},
		"DNS by its port": {[]string{"podSelector: {}\npolicyTypes: [Egress]\negress: [{ports: [{port: 53, protocol: UDP}, {port: 53}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Allow}, {"x/a", "192.0.2.9", udp, 53, Allow}, {"x/a", "192.0.2.9", udp, 10053, Deny},
		}},
		"DNS by the name of its port": {[]string{"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{namespaceSelector: {}}], ports: [{port: dns, protocol: UDP}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Deny},
		}},
		"DNS by its address": {[]string{"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 10.43.0.10/32}}], ports: [{port: 53, protocol: UDP}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Deny},
		}},
		"DNS without a port": {[]string{"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{namespaceSelector: {}}]}]"}, []probe{
			{"x/a", "192.0.2.1", udp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 10053, Allow}, {"x/a", "192.0.2.1", tcp, 6443, Deny},
		}},
		"the node that answers DNS": {[]string{"podSelector: {}\npolicyTypes: [Egress, Ingress]\ningress: [{from: [{namespaceSelector: {}}]}]\negress: [{to: [{ipBlock: {cidr: 192.0.2.1/32}}], ports: [{port: 10053}]}]"}, []probe{
			{"x/a", "192.0.2.1", tcp, 10053, Allow}, {"x/a", "192.0.2.1", udp, 10053, Deny}, {"192.0.2.1", "x/a", tcp, 10053, Deny},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := newCluster(t, c.policies...)
			for _, p := range c.probes {
				if got := cluster.verdict(t, p.from, p.to, p.protocol, p.port); got != p.want {
					t.Errorf("%s to %s %s/%d: %s, want %s", p.from, p.to, p.protocol, p.port, got, p.want)
				}
			}
		})
	}
}

// TestChanges: what Take returns over time is, together, what All returns.
func TestChanges(t *testing.T) {
	c := newCluster(t, "podSelector: {}\ningress: [{from: [{namespaceSelector: {matchLabels: {ns: \"y\"}}}], ports: [{port: 80}]}]")
	table := newModel()
	step := func(what string) {
		t.Helper()
		table.apply(t, c.Take())
		want := newModel()
		want.apply(t, c.All())
		if got, want := table.String(), want.String(); got != want {
			t.Errorf("%s: the table is\n%s\nwant\n%s", what, got, want)
		}
	}
	step("at first")
	c.SetPod(podNamed("y/c", netip.MustParseAddr("10.42.0.9")))
	step("a pod of another node")
	moved := podNamed("y/c", netip.MustParseAddr("10.42.0.10"))
	c.SetPod(moved)
	step("another address")
	c.SetPod(podNamed("x/z", netip.MustParseAddr("10.42.0.10")))
	step("an address that two pods have")
	c.DeletePod("x/z")
	step("the second is gone")
	c.SetNamespace("y", map[string]string{"ns": "other"})
	step("other labels of a namespace")
	c.AddLocal("x/new", []netip.Addr{netip.MustParseAddr("10.42.0.20")})
	step("an unknown pod")
	if got := table.selected[Ingress][netip.MustParseAddr("10.42.0.20")]; got != Closed {
		t.Errorf("a pod of which nothing is known has the class %q", got)
	}
	c.SetPod(podNamed("x/new"))
	step("it is known")
	c.SetPolicy(policyOf(t, "podSelector: {matchLabels: {app: new}}\npolicyTypes: [Egress, Ingress]"))
	step("a second policy")
	c.DeleteLocal("x/new")
	step("the pod is gone")
	c.DeletePolicy("x", c.policies["x"][firstOf(c.policies["x"])].name)
	step("a policy is gone")
	for name := range c.policies["x"] {
		c.DeletePolicy("x", name)
	}
	step("no policy")
	if all := c.All(); !all.Empty() {
		t.Errorf("without policies there is %+v", all)
	}
}

func firstOf(m map[string]*policy) string {
	for name := range m {
		return name
	}
	return ""
}
