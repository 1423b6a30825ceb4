package policy

import (
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestPolicies goes through the life of policies on one node.
func TestPolicies(t *testing.T) {
	s := shared(t)
	if rules := table(t, s); rules != "" {
		t.Errorf("without policies there is a table:\n%s", rules)
	}
	ns, other := s.Namespace(t), s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b"))
	c := s.Run(t, server(other, "c"))
	pid := func(pod *corev1.Pod) int { return s.ContainerPID(t, pod, "main") }
	echo := func(pod *corev1.Pod) string { return net.JoinHostPort(pod.Status.PodIP, "9000") }
	inA, inB, inC, node := pid(a), pid(b), pid(c), s.PID()
	check(t, "without policies", probe{"c to a", inC, "tcp", echo(a), true})

	open, err := harness.DialFrom(t.Context(), inC, "tcp", echo(a))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if err := exchange(open, allowance); err != nil {
		t.Fatal(err)
	}
	kept, err := harness.DialFrom(t.Context(), inB, "tcp", echo(a))
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()

	policy(t, s, ns, "deny", "podSelector: {}\npolicyTypes: [Ingress]")
	check(t, "with ingress denied",
		probe{"c to a", inC, "tcp", echo(a), false}, probe{"c to a", inC, "udp", echo(a), false}, probe{"b to a", inB, "tcp", echo(a), false},
		probe{"a to c", inA, "tcp", echo(c), true}, probe{"the node to a", node, "tcp", echo(a), true}, probe{"the node to a", node, "udp", echo(a), true},
		probe{"a to itself", inA, "tcp", echo(a), true})
	if err := exchange(open, patience); err == nil {
		t.Error("a connection that the policy forbids goes on")
	}
	policy(t, s, ns, "allow", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}], ports: [{port: echo}]}]`)
	check(t, "with b allowed", probe{"b to a", inB, "tcp", echo(a), true}, probe{"b to a", inB, "udp", echo(a), false},
		probe{"b to a's other port", inB, "tcp", net.JoinHostPort(a.Status.PodIP, "8080"), false}, probe{"c to a", inC, "tcp", echo(a), false},
		probe{"a to b", inA, "tcp", echo(b), false})
	if err := exchange(kept, allowance); err != nil {
		t.Errorf("a connection that the policies allow does not: %v", err)
	}
	s.Kubectl(t, "-n", other, "label", "pod", "c", "app=b", "--overwrite")
	check(t, "with the label, but in another namespace", probe{"b to a", inB, "tcp", echo(a), true}, probe{"c to a", inC, "tcp", echo(a), false})
	s.Kubectl(t, "-n", ns, "label", "pod", "b", "app=z", "--overwrite")
	check(t, "without the label", probe{"b to a", inB, "tcp", echo(a), false})
	unpolicy(t, s, ns, "allow")
	unpolicy(t, s, ns, "deny")
	check(t, "without policies again", probe{"c to a", inC, "tcp", echo(a), true}, probe{"c to a", inC, "udp", echo(a), true})
	harness.Eventually(t, applies, "no table", func() error {
		if rules := table(t, s); rules != "" {
			return errors.New(rules)
		}
		return nil
	})

	// Egress: after the DNAT of Services, and DNS by the usual rule although it has no pod.
	s.Kubectl(t, "-n", other, "expose", "pod", "c", "--port=9000")
	service := func() string {
		ip := s.Kubectl(t, "-n", other, "get", "service", "c", "-o", "jsonpath={.spec.clusterIP}")
		return net.JoinHostPort(ip, "9000")
	}()
	harness.Eventually(t, 20*time.Second, "the Service", func() error { return ask(t.Context(), inA, "tcp", service, allowance) })
	kubelet := net.JoinHostPort(s.NodeIP, "10250")
	if err := connects(t.Context(), inA, kubelet, allowance); err != nil {
		t.Errorf("a to the node, before a policy denies it: %v", err)
	}
	policy(t, s, ns, "egress", `
podSelector: {matchLabels: {app: a}}
policyTypes: [Egress]`)
	lookup := func() error {
		_, _, err := s.TryPodExec(t, a, "main", "/bin/probe", "lookup", "A", "kubernetes.default.svc.cluster.local")
		return err
	}
	check(t, "with egress denied", probe{"a to c", inA, "tcp", echo(c), false}, probe{"a to the Service of c", inA, "tcp", service, false},
		probe{"c to a", inC, "tcp", echo(a), true})
	if connects(t.Context(), inA, kubelet, patience) == nil {
		t.Error("a denied pod reaches the node")
	}
	if lookup() == nil {
		t.Error("a denied pod reaches DNS")
	}
	policy(t, s, ns, "dns", `
podSelector: {}
policyTypes: [Egress]
egress:
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}, podSelector: {matchLabels: {k8s-app: kube-dns}}}]
  ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]
- to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: `+other+`}}}]
  ports: [{port: 9000}]`)
	check(t, "with DNS and c allowed", probe{"a to the Service of c", inA, "tcp", service, true}, probe{"a to c", inA, "udp", echo(c), false},
		probe{"a to b", inA, "tcp", echo(b), false})
	if err := lookup(); err != nil {
		t.Errorf("DNS, which a policy allows: %v", err)
	}

	// Another program stops the host from filtering bridged packets.
	t.Cleanup(func() { s.Exec(t, "sysctl", "-w", "net.bridge.bridge-nf-call-iptables=1") })
	s.Exec(t, "sysctl", "-w", "net.bridge.bridge-nf-call-iptables=0")
	check(t, "with bridge-nf-call-iptables off", probe{"a to the Service of c", inA, "tcp", service, true}, probe{"a to b", inA, "tcp", echo(b), false})

	// Another program removes the table.
	s.Exec(t, "nft", "delete", "table", "inet", "kubelith_policy")
	harness.Eventually(t, applies, "the table to come back", func() error {
		if !strings.Contains(table(t, s), "egress-") {
			return errors.New("no table")
		}
		return nil
	})
	check(t, "after the table was removed", probe{"a to b", inA, "tcp", echo(b), false}, probe{"a to the Service of c", inA, "tcp", service, true})
	harness.Eventually(t, 10*time.Second, "an Event", func() error {
		if out := s.Kubectl(t, "events", "-A"); !strings.Contains(out, "NetworkPolicyTableRemoved") {
			return errors.New(out)
		}
		return nil
	})
}
