package kernel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/knftables"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// specs are policies with every kind of map.
var specs = []string{
	"podSelector: {}\npolicyTypes: [Ingress, Egress]",
	"podSelector: {matchLabels: {app: a}}\ningress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]",
	"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{namespaceSelector: {}}]}]",
	"podSelector: {}\ningress: [{from: [{namespaceSelector: {}}], ports: [{port: 80}, {port: 100, endPort: 200}, {protocol: UDP}]}]",
	"podSelector: {}\npolicyTypes: [Egress]\negress: [{to: [{ipBlock: {cidr: 192.0.2.0/24, except: [192.0.2.7/32]}}]}, {to: [{ipBlock: {cidr: '2001:db8::/64'}}], ports: [{port: 1, endPort: 9}]}]",
	"podSelector: {}\ningress: [{ports: [{port: 53, protocol: UDP}]}]",
	"podSelector: {matchLabels: {app: c}}\ningress: [{}]\negress: [{}]\npolicyTypes: [Ingress, Egress]",
}

// TestApply: a table that follows random changes is the one that is written at once. The fake refuses what refers to
// something that is not there, and to remove what is referred to.
func TestApply(t *testing.T) {
	for seed := range uint64(30) {
		random := rand.New(rand.NewPCG(seed, 0))
		compiler := rules.NewCompiler()
		compiler.SetServices([]rules.Service{{
			Namespace: "kube-system", Labels: map[string]string{"k8s-app": "kube-dns"},
			Ports:  []rules.NamedPort{{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53}},
			Target: 10053, Endpoints: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		}})
		followed, written := fake(t), fake(t)
		if err := followed.Replace(t.Context(), compiler.All()); err != nil {
			t.Fatal(err)
		}
		for step := range 60 {
			change(t, compiler, random)
			if random.IntN(3) > 0 {
				continue
			}
			if err := followed.Apply(t.Context(), compiler.Take()); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if err := written.Replace(t.Context(), compiler.All()); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if got, want := dump(followed), dump(written); !slices.Equal(got, want) {
				t.Fatalf("seed %d, step %d: the followed table is\n%s\nthe written one\n%s", seed, step, strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
		}
	}
}

func fake(t *testing.T) *Table {
	t.Helper()
	return newTable(knftables.NewFake(knftables.InetFamily, names.PolicyTable), true, true)
}

func dump(t *Table) []string {
	lines := strings.Split(t.nft.(*knftables.Fake).Dump(), "\n")
	slices.Sort(lines)
	return lines
}

// change makes a random change.
func change(t *testing.T, c *rules.Compiler, random *rand.Rand) {
	t.Helper()
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	uid := types.UID(fmt.Sprint(random.IntN(8)))
	switch random.IntN(7) {
	case 0, 1:
		p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: pick("x", "y"), Name: pick("p", "q", "r")}}
		if err := yaml.UnmarshalStrict([]byte(pick(specs...)), &p.Spec); err != nil {
			t.Fatal(err)
		}
		for _, err := range c.SetPolicy(p) {
			t.Fatal(err)
		}
	case 2:
		c.DeletePolicy(pick("x", "y"), pick("p", "q", "r"))
	case 3:
		c.SetNamespace(pick("x", "y", "kube-system"), map[string]string{"a": pick("b", "c")})
	case 4:
		c.SetPod(&rules.Pod{
			Namespace: "x", Name: string(uid), UID: uid, Labels: map[string]string{"app": pick("a", "b", "c")},
			IPs: []netip.Addr{netip.MustParseAddr("10.42.0." + pick("2", "3", "4", "5")), netip.MustParseAddr("2001:db8::" + pick("2", "3", "4", "5"))},
		})
	case 5:
		c.DeletePod(uid)
	case 6:
		if random.IntN(2) == 0 {
			c.DeleteLocal(uid)
			return
		}
		c.AddLocal(uid, []netip.Addr{netip.MustParseAddr("10.42.1." + string(uid)), netip.MustParseAddr("2001:db8:1::" + string(uid))})
	}
}

// TestClose: a pod of which nothing is known is closed, with and without a table of an earlier process.
func TestClose(t *testing.T) {
	for _, before := range []bool{false, true} {
		table := fake(t)
		if before {
			c := rules.NewCompiler()
			c.AddLocal("old", []netip.Addr{netip.MustParseAddr("10.42.0.9")})
			if err := table.Replace(t.Context(), c.All()); err != nil {
				t.Fatal(err)
			}
			table = newTable(table.nft, true, true) // another process
		}
		if err := table.Close(context.Background(), []netip.Addr{netip.MustParseAddr("10.42.0.2")}); err != nil {
			t.Fatal(err)
		}
		text := strings.Join(dump(table), "\n")
		for _, d := range []string{"egress", "ingress"} {
			if want := d + "-ip { 10.42.0.2 : jump closed }"; !strings.Contains(text, want) {
				t.Errorf("%q is not in\n%s", want, text)
			}
			if has := strings.Contains(text, d+"-ip { 10.42.0.9 : jump closed }"); has != before {
				t.Errorf("the pod of an earlier process: %v", has)
			}
		}
	}
}

// TestPorts: ports come and go, one at a time or with the whole table.
func TestPorts(t *testing.T) {
	p := &Ports{nft: knftables.NewFake(knftables.BridgeFamily, names.PolicyTable)}
	a, b := netip.MustParseAddr("10.42.0.2"), netip.MustParseAddr("2001:db8::2")
	for i, wanted := range []map[string][]netip.Addr{{"veth1": {a, b}}, {"veth1": {a, b}, "veth2": {a}}, {"veth2": {a}}, {}} {
		if err := p.Write(t.Context(), wanted); err != nil {
			t.Fatal(err)
		}
		text := p.nft.(*knftables.Fake).Dump()
		for name, ips := range map[string][]netip.Addr{"veth1": {a, b}, "veth2": {a}} {
			for _, ip := range ips {
				_, want := wanted[name]
				if has := strings.Contains(text, fmt.Sprintf("{ %s . %s }", name, ip)); has != want {
					t.Errorf("step %d: %s with %s: %v\n%s", i, name, ip, has, text)
				}
			}
		}
	}
}

// TestCheck: a table is as written until another program removes it, or rules of it.
func TestCheck(t *testing.T) {
	table, ports := fake(t), &Ports{nft: knftables.NewFake(knftables.BridgeFamily, names.PolicyTable)}
	c := rules.NewCompiler()
	c.AddLocal("a", []netip.Addr{netip.MustParseAddr("10.42.0.9")})
	for name, tc := range map[string]struct {
		nft   knftables.Interface
		write func() error
		check func(context.Context) bool
		chain string
	}{
		"inet":   {table.nft, func() error { return table.Replace(t.Context(), c.All()) }, table.Check, "output"},
		"bridge": {ports.nft, func() error { return ports.Write(t.Context(), nil) }, ports.Check, "prerouting"},
	} {
		for what, change := range map[string]func(*knftables.Transaction){
			"nothing": nil,
			"removes": func(tx *knftables.Transaction) { tx.Delete(&knftables.Table{}) },
			"flushes": func(tx *knftables.Transaction) { tx.Flush(&knftables.Chain{Name: tc.chain}) },
		} {
			if err := tc.write(); err != nil {
				t.Fatal(err)
			}
			if change != nil {
				tx := tc.nft.NewTransaction()
				change(tx)
				if err := tc.nft.Run(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
			}
			if got := tc.check(t.Context()); got != (change != nil) {
				t.Errorf("%s, %s: noticed %v", name, what, got)
			}
		}
	}
}

// TestIsOurs: which removals are of our tables.
func TestIsOurs(t *testing.T) {
	for name, tc := range map[string]struct {
		removal netevents.Removal
		want    bool
	}{
		"a table":                     {netevents.Removal{Table: names.PolicyTable}, true},
		"another table":               {netevents.Removal{Table: "kube-proxy"}, false},
		"a rule of a hook":            {netevents.Removal{Table: names.PolicyTable, Chain: "forward"}, true},
		"a rule of a class":           {netevents.Removal{Table: names.PolicyTable, Chain: "ingress-1"}, false},
		"a rule of another's":         {netevents.Removal{Table: "kube-proxy", Chain: "forward"}, false},
		"a rule of pods' port filter": {netevents.Removal{Table: names.PolicyTable, Chain: "prerouting"}, true},
		"anything":                    {netevents.Removal{}, true},
	} {
		if got := isOurs(tc.removal); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
