// Package policyfuzz compares, with packets, how the kernel enforces random network policies, cluster-wide ones too,
// with another implementation: the engine of sigs.k8s.io/kube-network-policies (./oracle).
//
// A node, its pods and what is outside are network namespaces (world_test.go). The tables of components/worker/policy
// are written to the node's. From case to case the cluster changes a little, as clusters do (state_test.go), and the
// tables with it (subject_test.go): so that what is left over from earlier objects shows as well. `make policy-fuzz`
// runs many cases.
//
// What the oracle does not decide is added in oracle_test.go: the own node may always reach its pods, a pod that the
// API has not shown yet is closed, and cluster DNS, which has no pod here, is seen as the pod that it would have.
package policyfuzz

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// seed of the cases that CI runs.
const seed = 15

const probesPerCase = 80

// TestFuzz runs KUBELITH_POLICY_FUZZ cases (100) from the seed KUBELITH_POLICY_FUZZ_SEED (seed).
func TestFuzz(t *testing.T) {
	cases, first := setting(t, "KUBELITH_POLICY_FUZZ", 100), setting(t, "KUBELITH_POLICY_FUZZ_SEED", seed)
	f := newFuzz(t)
	t.Logf("seed %d: make policy-fuzz CASES=%d SEED=%d runs the same cases again", first, cases, first)
	g := &generator{Rand: rand.New(rand.NewPCG(uint64(first), 0)), w: f.w}
	var before *state
	counts := map[string]int{}
	differing := 0
	start := time.Now()
	for i := range cases {
		now := (*state)(nil)
		if before == nil {
			now = g.state()
		} else {
			now = g.next(before)
		}
		probes := g.probes(probesPerCase, len(now.ClusterPolicies) == 0)
		order := g.Uint64()
		var err error
		if before == nil || g.chance(20) {
			err = f.subject.restart(now)
			counts["written as a whole"]++
		} else {
			err = f.subject.change(now, rand.New(rand.NewPCG(order, 0)))
		}
		if g.chance(5) { // rules must leave room to find neighbours again
			err = errors.Join(err, f.w.forgetNeighbours(g.IntN(locals)))
		}
		var found []difference
		if err == nil {
			found, err = f.compare(now, probes, counts)
		}
		if err != nil || len(found) > 0 {
			differing++
			t.Errorf("case %d of seed %d: %s", i, first, f.report(before, now, order, found, err))
			if differing == 5 {
				t.Fatal("enough")
			}
			if err := f.subject.restart(now); err != nil {
				t.Fatal(err)
			}
		}
		before = now
	}
	t.Logf("%d cases in %s, %d with differences: %v", cases, time.Since(start).Round(time.Second), differing, counts)
	for _, must := range []string{"allowed TCP", "denied TCP", "allowed UDP", "denied UDP", "allowed SCTP", "denied SCTP", "kept and allowed TCP", "kept and denied TCP"} {
		if cases >= 100 && counts[must] == 0 {
			t.Errorf("no probe was %s", must)
		}
	}
}

func setting(t *testing.T, name string, other int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return other
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

// fuzz is what cases need.
type fuzz struct {
	w       *world
	oracle  *oracle
	subject *subject
	flows   flows
}

func newFuzz(t *testing.T) *fuzz {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	harness.RequireProgram(t, "nft")
	f := &fuzz{w: newWorld(t), oracle: startOracle(t), flows: flows{}}
	t.Cleanup(func() {
		for p := range f.flows {
			f.flows.close(p)
		}
	})
	f.subject = newSubject(f.w)
	return f
}

// difference is a probe with another result than the oracle's.
type difference struct {
	probe
	allowed bool // by the oracle
	outcome      // of the packets
	explain bool // the pure functions differ
}

// compare tries probes, and returns those that differ.
func (f *fuzz) compare(s *state, probes []probe, counts map[string]int) ([]difference, error) {
	allowed, err := f.oracle.verdicts(f.w, s, probes)
	if err != nil {
		return nil, err
	}
	kept := map[probe]bool{}
	for p := range f.flows {
		kept[p] = true
	}
	outcomes, err := f.w.try(probes, allowed, f.flows)
	if err != nil {
		return nil, err
	}
	var found []difference
	for i, p := range probes {
		word := "denied"
		if allowed[i] {
			word = "allowed"
		}
		if kept[p] {
			word = "kept and " + word
		}
		counts[word+" "+string(p.Protocol)]++
		if differs(allowed[i], outcomes[i]) {
			found = append(found, difference{probe: p, allowed: allowed[i], outcome: outcomes[i]})
		}
		said, err := f.subject.explain(p)
		if err != nil {
			return nil, err
		}
		if said != allowed[i] {
			found = append(found, difference{probe: p, allowed: allowed[i], explain: true})
		}
	}
	return found, nil
}

func differs(allowed bool, o outcome) bool {
	return allowed && o != answered || !allowed && o != nothing
}

// TestFuzzFindsFaults runs cases with faults injected by hand: each must be found, or the fuzz proves nothing.
func TestFuzzFindsFaults(t *testing.T) {
	f := newFuzz(t)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), w: f.w}
	deny := g.state() // a case with much of both verdicts: a namespace's pods are closed
	for i, p := range deny.Slots {
		if p == nil || deny.Unknown[p.UID] {
			for deny.Slots[i] == nil || deny.Unknown[deny.Slots[i].UID] {
				g.fill(deny, i)
			}
		}
		deny.Slots[i].Namespace = namespaces[i%2]
	}
	deny.ClusterPolicies = nil
	deny.Policies = []*networkingv1.NetworkPolicy{{}}
	deny.Policies[0].Namespace, deny.Policies[0].Name = namespaces[0], "closed"
	deny.Policies[0].Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}

	for _, fault := range []struct {
		name, nft string
		found     func(difference) bool
	}{
		{"nothing", "", nil},
		{"no table", "delete table inet kubelith_policy", func(d difference) bool { return !d.allowed && d.outcome == answered }},
		{"answers of UDP are dropped", "add table inet fault; add chain inet fault forward { type filter hook forward priority 10; }; " +
			"add rule inet fault forward ct direction reply meta l4proto udp drop",
			func(d difference) bool { return d.allowed && d.outcome == reached && d.Protocol == corev1.ProtocolUDP }},
		{"a port is closed", "add table inet fault; add chain inet fault forward { type filter hook forward priority 10; }; " +
			"add rule inet fault forward meta l4proto { tcp, udp, sctp } th dport 8080 drop",
			func(d difference) bool { return d.allowed && d.outcome == nothing && d.Port == 8080 }},
		{"IPv6 is closed", "add table inet fault; add chain inet fault forward { type filter hook forward priority 10; }; " +
			"add rule inet fault forward ct state new meta l4proto { tcp, udp, sctp } meta nfproto ipv6 drop",
			func(d difference) bool { return d.allowed && d.outcome == nothing && d.Family == 1 }},
		{"a pod's egress is open", "flush chain inet kubelith_policy forward", func(d difference) bool { return !d.allowed && d.outcome == answered }},
		{"the node is open to pods", "flush chain inet kubelith_policy input; flush chain inet kubelith_policy output",
			func(d difference) bool {
				return !d.allowed && d.outcome == answered && f.w.endpoints[d.To].kind == node
			}},
		{"packets reach the node, and its answers are dropped", "flush chain inet kubelith_policy input",
			func(d difference) bool { return !d.allowed && d.outcome == reached && f.w.endpoints[d.To].kind == node }},
	} {
		if err := f.subject.restart(deny); err != nil {
			t.Fatal(err)
		}
		if fault.nft != "" {
			if err := f.w.router.Do(func(ns.NetNS) error { return runNft(fault.nft) }); err != nil {
				t.Fatal(err)
			}
		}
		found, err := f.compare(deny, g.probes(2*probesPerCase, true), map[string]int{})
		if err != nil {
			t.Fatal(err)
		}
		right := 0
		for _, d := range found {
			if fault.found == nil || !fault.found(d) {
				t.Errorf("%s: %s", fault.name, f.text(d))
				continue
			}
			right++
		}
		if fault.found != nil && right == 0 {
			t.Errorf("%s: the fuzz does not see it", fault.name)
		}
		t.Logf("%s: %d differences", fault.name, right)
		err = f.w.router.Do(func(ns.NetNS) error { return runNft("add table inet fault; delete table inet fault") })
		if err != nil {
			t.Fatal(err)
		}
	}
}

func (f *fuzz) text(d difference) string {
	word := map[bool]string{true: "allows", false: "denies"}
	got := d.outcome.String()
	if d.explain {
		got = word[!d.allowed] + " by the explanation"
	}
	return fmt.Sprintf("%s: the oracle %s it, got: %s", f.w.text(d.probe), word[d.allowed], got)
}
