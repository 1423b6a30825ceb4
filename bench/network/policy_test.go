package network

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// TestPolicies measures the path between two pods of a node without network policies, with 10 and with 1,000 of them.
// All select both pods, in both directions, and the last one allows what is measured.
func TestPolicies(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-network")
	if store.Rounds("policies", results.NoPolicies) >= rounds {
		t.Skip("done in an earlier run")
	}
	s := harness.Start(t, harness.Options{})
	ns := s.Namespace(t)
	client := s.Run(t, harness.Pod(ns, "client", "/bin/probe", "sleep"))
	near := s.Run(t, harness.Pod(ns, "near", "/bin/probe", "sink"))
	pid := s.ContainerPID(t, client, "main")
	cs := manyClient(t, s)
	time.Sleep(10 * time.Second) // what follows a start has ended
	for round := 1; round <= rounds; round++ {
		have := 0
		for _, w := range []struct {
			name     string
			policies int
		}{{results.NoPolicies, 0}, {results.TenPolicies, 10}, {results.ThousandPolicies, 1000}} {
			for ; have < w.policies; have++ {
				allow(t, cs, ns, have)
			}
			if store.Done("policies", round, w.name) {
				continue
			}
			inKernel(t, s, w.policies)
			time.Sleep(2 * time.Second) // what follows a change has ended
			samples := way{w.name, near.Status.PodIP + ":9100", func(args ...string) *exec.Cmd { return inNetwork(pid, pid, args...) }}.measure(t)
			for _, s := range samples {
				t.Logf("round %d, %s, %s: %.3f", round, w.name, s.Figure, s.Value)
			}
			if err := store.Add("policies", round, w.name, samples...); err != nil {
				t.Fatal(err)
			}
		}
		if err := cs.NetworkingV1().NetworkPolicies(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// inKernel waits until the kernel has as many policies, each of which has its own port; none: no table.
func inKernel(t *testing.T, s *harness.Server, policies int) {
	t.Helper()
	harness.Eventually(t, time.Minute, fmt.Sprint(policies, " policies in the kernel"), func() error {
		rules := s.TryExec(t, "nft", "list", "table", "inet", names.PolicyTable).Stdout
		if policies == 0 && rules != "" || !strings.Contains(rules, last(policies)) {
			return fmt.Errorf("the table has %d bytes", len(rules))
		}
		return nil
	})
}

// last is the range of the policies' own ports, as the kernel has it; empty without policies.
func last(policies int) string {
	if policies == 0 {
		return ""
	}
	return fmt.Sprintf(" . %d-%d : ", firstPort, firstPort+policies-1)
}

// firstPort is that of the first policy.
const firstPort = 10000

// manyClient is a client that does not limit itself.
func manyClient(t *testing.T, s *harness.Server) kubernetes.Interface {
	t.Helper()
	config := s.RESTConfig(t)
	config.QPS, config.Burst = 1000, 1000
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// allow creates a policy that allows connections among the pods app=client and app=near, and one unused port.
func allow(t *testing.T, cs kubernetes.Interface, ns string, i int) {
	t.Helper()
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"client", "near", fmt.Sprint("other-", i)}},
	}}}}
	_, err := cs.NetworkingV1().NetworkPolicies(ns).Create(t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("policy-", i)},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports(port, firstPort+i)}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports(port, firstPort+i)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func ports(numbers ...int) (out []networkingv1.NetworkPolicyPort) {
	for _, n := range numbers {
		number, tcp := intstr.FromInt(n), corev1.ProtocolTCP
		out = append(out, networkingv1.NetworkPolicyPort{Port: &number, Protocol: &tcp})
	}
	return out
}
