package policy

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestServices: what reaches a pod through a Service is judged by who sent it, not by the node that translates the
// addresses.
func TestServices(t *testing.T) {
	s := harness.Start(t, harness.Options{})
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

// TestLeaves: our tables are gone where a third party enforces policies or they are switched off, and all come back.
func TestLeaves(t *testing.T) {
	const settings = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	s := harness.Start(t, harness.Options{ConfigYAML: settings})
	ns := s.Namespace(t)
	a, b := s.Run(t, server(ns, "a")), s.Run(t, server(ns, "b"))
	inB, address := s.ContainerPID(t, b, "main"), net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "deny", "podSelector: {}\npolicyTypes: [Ingress]")
	denied, allowed := probe{"b to a", inB, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true}
	check(t, "at first", denied)
	tables := func(want bool) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, "the tables", func() error {
			for _, family := range []string{"inet", "bridge"} {
				if there := s.TryExec(t, "nft", "list", "table", family, "kubelith_policy").Code == 0; there != want {
					return fmt.Errorf("there is a table of family %s: %v", family, there)
				}
			}
			return nil
		})
	}
	tables(true)

	// Another program removes one, or all that there are, or its rules.
	for _, command := range [][]string{{"delete", "table", "bridge", "kubelith_policy"}, {"flush", "ruleset"}, {"flush", "table", "inet", "kubelith_policy"}} {
		s.Exec(t, "nft", command...)
		harness.Eventually(t, applies, strings.Join(command, " "), func() error {
			if s.TryExec(t, "nft", "list", "table", "bridge", "kubelith_policy").Code != 0 || table(t, s) == "" {
				return errors.New("the tables are not back")
			}
			return nil
		})
		check(t, strings.Join(command, " "), denied)
	}

	// A third party's network arrives, and goes.
	file := s.Path("/etc/cni/net.d/10-other.conflist")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "loopback"}]}`), 0o600); err != nil {
		t.Fatal(err)
	}
	tables(false)
	check(t, "with a third party's network", allowed)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	tables(true)
	check(t, "with our own again", denied)

	if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(settings+"disable: [network-policy]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Restart(t)
	tables(false)
	check(t, "with network-policy disabled", allowed)
}
