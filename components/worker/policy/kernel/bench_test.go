package kernel

import (
	"fmt"
	"net/netip"
	"os"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/components/worker/policy/rules"
)

// The benchmarks measure what one node spends on a large cluster. In their own network namespace they can write to the
// kernel, too:
//
//	go test -c -o policy.test ./components/worker/policy/kernel
//	KUBELITH_KERNEL=1 unshare -n ./policy.test -test.run=- -test.bench=.

// writer returns a table in the kernel, or nil.
func writer(b *testing.B) *Table {
	b.Helper()
	if os.Getenv("KUBELITH_KERNEL") == "" {
		return nil
	}
	return New(true, false)
}

// write writes what has changed.
func write(b *testing.B, t *Table, c *rules.Compiler) {
	b.Helper()
	changes := c.Take()
	if t == nil {
		return
	}
	if err := t.Apply(b.Context(), changes); err != nil {
		b.Fatal(err)
	}
}

// large is a cluster of 5,000 pods in 50 namespaces with 10 policies each; 110 pods are on this node.
func large(b *testing.B) (*rules.Compiler, *Table) {
	b.Helper()
	c := rules.NewCompiler()
	for n := range 50 {
		namespace := fmt.Sprintf("n%d", n)
		c.SetNamespace(namespace, map[string]string{"team": fmt.Sprint(n % 5)})
		for p := range 10 {
			c.SetPolicy(largePolicy(b, namespace, p, p))
		}
	}
	for i := range 5000 {
		c.SetPod(largePod(i, i%20))
		if i < 110 {
			c.AddLocal(types.UID(fmt.Sprint(i)), []netip.Addr{largeIP(i)})
		}
	}
	all := c.All()
	if all.Empty() {
		b.Fatal("nothing is selected")
	}
	t := writer(b)
	if t != nil {
		if err := t.Replace(b.Context(), all); err != nil {
			b.Fatal(err)
		}
	}
	return c, t
}

func largeIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 42, byte(i / 250), byte(i % 250)}) }

func largePod(i, app int) *rules.Pod {
	return &rules.Pod{
		Namespace: fmt.Sprintf("n%d", i%50), Name: fmt.Sprint(i), UID: types.UID(fmt.Sprint(i)),
		Labels: map[string]string{"app": fmt.Sprint(app)}, IPs: []netip.Addr{largeIP(i)},
	}
}

func largePolicy(b *testing.B, namespace string, i, port int) *networkingv1.NetworkPolicy {
	b.Helper()
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint(i)}}
	spec := fmt.Sprintf(`
podSelector: {matchLabels: {app: "%d"}}
policyTypes: [Ingress, Egress]
ingress: [{from: [{namespaceSelector: {matchLabels: {team: "%d"}}}, {podSelector: {}}], ports: [{port: %d}]}]
egress: [{to: [{namespaceSelector: {}}]}]`, i, i%5, 8000+port)
	if err := yaml.UnmarshalStrict([]byte(spec), &p.Spec); err != nil {
		b.Fatal(err)
	}
	return p
}

// BenchmarkBlocks is one policy with 10,000 blocks, until it is in the kernel in place of none.
func BenchmarkBlocks(b *testing.B) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "n0", Name: "blocks"}}
	p.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	var to []networkingv1.NetworkPolicyPeer
	for i := range 10000 {
		to = append(to, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("100.%d.%d.0/25", 64+i/256, i%256)}})
	}
	p.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: to}}
	for b.Loop() {
		c := rules.NewCompiler()
		c.SetNamespace("n0", nil)
		c.SetPod(largePod(0, 0))
		c.AddLocal("0", []netip.Addr{largeIP(0)})
		c.SetPolicy(p)
		all := c.All()
		if t := writer(b); t != nil {
			if err := t.Replace(b.Context(), all); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// BenchmarkStart is the whole table of a node.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		large(b)
	}
}

// BenchmarkPod is a pod of another node that comes and goes.
func BenchmarkPod(b *testing.B) {
	c, t := large(b)
	pod := largePod(6000, 3)
	for b.Loop() {
		c.SetPod(pod)
		write(b, t, c)
		c.DeletePod(pod.UID)
		write(b, t, c)
	}
}

// BenchmarkPolicy is a policy that selects pods of this node, and changes.
func BenchmarkPolicy(b *testing.B) {
	c, t := large(b)
	for i := 0; b.Loop(); i++ {
		c.SetPolicy(largePolicy(b, "n1", 1, i%100))
		write(b, t, c)
	}
}

// BenchmarkNamespace is a namespace whose labels change, and with them who 100 pods are.
func BenchmarkNamespace(b *testing.B) {
	c, t := large(b)
	for i := 0; b.Loop(); i++ {
		c.SetNamespace("n1", map[string]string{"team": fmt.Sprint(i % 5)})
		write(b, t, c)
	}
}
