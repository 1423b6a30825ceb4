package policy

import (
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestServices: what reaches a pod through a Service is judged by who sent it, not by the node that translates the
// addresses.
func TestServices(t *testing.T) {
	s := shared(t)
	ns := s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b"))
	inA, inB, outside := s.ContainerPID(t, a, "main"), s.ContainerPID(t, b, "main"), os.Getpid()
	s.Kubectl(t, "-n", ns, "expose", "pod", "a", "--port=9000", "--type=NodePort")
	service := func(field string) string {
		return s.Kubectl(t, "-n", ns, "get", "service", "a", "-o", "jsonpath={"+field+"}")
	}
	clusterIP := net.JoinHostPort(service(".spec.clusterIP"), "9000")
	nodePort := net.JoinHostPort(s.NodeIP, service(".spec.ports[0].nodePort"))
	for what, at := range map[string]probe{"the Service": {pid: inB, address: clusterIP}, "the node port": {pid: outside, address: nodePort}} {
		harness.Eventually(t, 20*time.Second, what, func() error { return ask(t.Context(), at.pid, "tcp", at.address, allowance) })
	}

	// Names may be that long.
	name := strings.Repeat(strings.Repeat("n", 62)+".", 4)[:251] + "z"
	policy(t, s, ns, name, "podSelector: {}\npolicyTypes: [Ingress, Egress]")
	nothing := []probe{{"b to the Service of a", inB, "tcp", clusterIP, false}, {"a client outside to the node port", outside, "tcp", nodePort, false},
		{"a to itself by its Service", inA, "tcp", clusterIP, true}, {"the node to a", s.PID(), "tcp", net.JoinHostPort(a.Status.PodIP, "9000"), true}}
	check(t, "with everything denied", nothing...)
	for _, direction := range []string{"ingress", "egress"} { // b's own connection, and that of the client outside
		counter := regexp.MustCompile(`(?m)^kubelith_network_policy_dropped_packets_total\{direction="` + direction + `",policy="` + regexp.QuoteMeta("NetworkPolicy "+ns+"/"+name) + `"\} [1-9]`)
		if metrics := s.Kubectl(t, "get", "--raw", "/metrics"); !counter.MatchString(metrics) {
			t.Errorf("no metric counts what the policy has dropped, %s", direction)
		}
	}
	policy(t, s, ns, "client", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{ipBlock: {cidr: `+s.HostIP+`/32}}]}]`)
	check(t, "with the client's address", probe{"a client outside to the node port", outside, "tcp", nodePort, true}, probe{"b to the Service of a", inB, "tcp", clusterIP, false})
	s.Kubectl(t, "-n", ns, "patch", "service", "a", "-p", `{"spec": {"externalTrafficPolicy": "Local"}}`)
	check(t, "with externalTrafficPolicy Local", probe{"a client outside to the node port", outside, "tcp", nodePort, true}, probe{"b to the Service of a", inB, "tcp", clusterIP, false})
	unpolicy(t, s, ns, "client")
	check(t, "with everything denied again", append(nothing[1:2:2], nothing...)...)
	if _, _, err := s.TryPodExec(t, a, "main", "/bin/probe", "lookup", "A", "kubernetes.default.svc.cluster.local"); err == nil {
		t.Error("a pod reaches DNS, which a policy forbids")
	}
}
