package policy

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// discovered is how long it may take on a busy machine until the nodes have noticed that the custom resource has come
// or gone.
const discovered = 20 * time.Second

// definition returns the custom resource of the version in go.mod, with what is experimental.
func definition(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(out)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// define installs the custom resource, and waits until each node follows it.
func define(t *testing.T, nodes ...*harness.Server) {
	t.Helper()
	s := nodes[0]
	s.KubectlInput(t, definition(t), "apply", "--server-side", "-f", "-")
	s.Kubectl(t, "wait", "--for=condition=Established", "crd/clusternetworkpolicies.policy.networking.k8s.io", harness.Timeout(20*time.Second))
	clusterPolicy(t, s, "first", "{tier: Baseline, priority: 1000, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}")
	begun := time.Now()
	for _, n := range nodes {
		harness.Eventually(t, discovered, "the node to follow ClusterNetworkPolicies", func() error {
			if table(t, n) == "" {
				return errors.New("there is no table")
			}
			return nil
		})
	}
	t.Logf("enforced on %d nodes %s after the first policy was created", len(nodes), time.Since(begun))
	s.Kubectl(t, "delete", "clusternetworkpolicy", "first")
}

func clusterPolicy(t *testing.T, s *harness.Server, name, spec string) {
	t.Helper()
	s.KubectlInput(t, "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: "+name+"}, spec: "+spec+"}", "apply", "-f", "-")
}

// TestClusterPolicies goes through tiers, priorities and nodes on one node.
func TestClusterPolicies(t *testing.T) {
	s := shared(t)
	t.Cleanup(func() {
		if t.Failed() {
			s.Kubectl(t, "delete", "crd", "clusternetworkpolicies.policy.networking.k8s.io", "--ignore-not-found")
		}
	})
	ns, other := s.Namespace(t), s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(other, "b"))
	inA, inB := s.ContainerPID(t, a, "main"), s.ContainerPID(t, b, "main")
	toA, toB := net.JoinHostPort(a.Status.PodIP, "9000"), net.JoinHostPort(b.Status.PodIP, "9000")
	define(t, s)

	subject := "subject: {namespaces: {matchLabels: {kubernetes.io/metadata.name: " + ns + "}}}"
	from := "from: [{namespaces: {matchLabels: {kubernetes.io/metadata.name: " + other + "}}}]"
	clusterPolicy(t, s, "deny", "{tier: Admin, priority: 10, "+subject+", ingress: [{action: Deny, "+from+"}]}")
	check(t, "with b denied", probe{"b to a", inB, "tcp", toA, false}, probe{"b to a", inB, "udp", toA, false}, probe{"a to b", inA, "tcp", toB, true})
	clusterPolicy(t, s, "accept", "{tier: Admin, priority: 5, "+subject+", ingress: [{action: Accept, "+from+", protocols: [{destinationNamedPort: echo}]}]}")
	check(t, "with a port accepted before", probe{"b to a", inB, "tcp", toA, true}, probe{"b to a", inB, "udp", toA, false})
	policy(t, s, ns, "none", "podSelector: {}\npolicyTypes: [Ingress]")
	check(t, "with a NetworkPolicy after", probe{"b to a", inB, "tcp", toA, true}, probe{"b to a", inB, "udp", toA, false})
	clusterPolicy(t, s, "pass", "{tier: Admin, priority: 1, "+subject+", ingress: [{action: Pass, "+from+"}]}")
	check(t, "with the admins passing to it", probe{"b to a", inB, "tcp", toA, false}, probe{"b to a", inB, "udp", toA, false})
	unpolicy(t, s, ns, "none")
	check(t, "without it", probe{"b to a", inB, "tcp", toA, true}, probe{"b to a", inB, "udp", toA, true})
	clusterPolicy(t, s, "base", "{tier: Baseline, priority: 1, "+subject+", ingress: [{action: Deny, "+from+"}]}")
	check(t, "with a baseline", probe{"b to a", inB, "tcp", toA, false}, probe{"b to a", inB, "udp", toA, false})
	if out := s.RunBinary(t, "policy", "explain", "-n", other, "b", "--to-namespace", ns, "a:9000").Stdout; !strings.Contains(out, "deny by ClusterNetworkPolicy base, ingress rule 1") {
		t.Errorf("policy explain does not name the rule:\n%s", out)
	}
	policy(t, s, ns, "all", "podSelector: {}\ningress: [{}]")
	check(t, "with a NetworkPolicy before the baseline", probe{"b to a", inB, "tcp", toA, true}, probe{"b to a", inB, "udp", toA, true})

	kubelet := net.JoinHostPort(s.NodeIP, "10250")
	if err := connects(t.Context(), inA, kubelet, allowance); err != nil {
		t.Errorf("a to the node, which no policy denies: %v", err)
	}
	denied := func(when string) {
		t.Helper()
		harness.Eventually(t, applies, "a not to reach the node "+when, func() error {
			if connects(t.Context(), inA, kubelet, patience) == nil {
				return errors.New("it does")
			}
			return nil
		})
	}
	clusterPolicy(t, s, "nodes", "{tier: Admin, priority: 3, "+subject+", egress: [{action: Deny, to: [{nodes: {}}]}]}")
	denied("while the nodes are denied")
	check(t, "with the nodes denied", probe{"a to b", inA, "tcp", toB, true}, probe{"the node to a", s.PID(), "tcp", toA, true})
	if _, _, err := s.TryPodExec(t, a, "main", "/bin/probe", "lookup", "A", "kubernetes.default.svc.cluster.local"); err != nil {
		t.Errorf("DNS, which is not the nodes' to policies: %v", err)
	}

	s.Restart(t)
	denied("after a restart")
	check(t, "after a restart", probe{"b to a", inB, "tcp", toA, true})
	unpolicy(t, s, ns, "all")
	check(t, "with the baseline again", probe{"b to a", inB, "tcp", toA, false})
	s.Kubectl(t, "delete", "crd", "clusternetworkpolicies.policy.networking.k8s.io")
	harness.Eventually(t, discovered, "the table to go with the custom resource", func() error { return errorOf(table(t, s)) })
	check(t, "without the custom resource", probe{"b to a", inB, "tcp", toA, true}, probe{"a to b", inA, "udp", toB, true})
	if err := connects(t.Context(), inA, kubelet, allowance); err != nil {
		t.Errorf("a to the node, without the custom resource: %v", err)
	}
}

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}
