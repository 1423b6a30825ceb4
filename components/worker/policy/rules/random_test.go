package rules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// randomPolicy is one of the cluster, in the words of the tests' cluster: namespaces x and y with pods a and b.
type randomPolicy struct {
	tier      string
	priority  int
	name      string
	namespace string // of the subject; "" is all
	rules     [2][]randomRule
}

type randomRule struct {
	action string
	peers  []string // "pods NAMESPACE APP", where * is all, "networks CIDR" or "nodes OS"
	ports  []string // "PROTOCOL FIRST LAST" or "name NAME"; none is all
}

func (r randomRule) matches(from, to, protocol string, port int, peer string) bool {
	name, isPod := strings.CutPrefix(peer, "pod ")
	peerIn := slices.ContainsFunc(r.peers, func(p string) bool {
		words := strings.Fields(p)
		switch words[0] {
		case "pods":
			return isPod && (words[1] == "*" || words[1] == name[:1]) && (words[2] == "*" || words[2] == name[2:])
		case "nodes":
			return peer == "192.0.2.1" && words[1] != "other" || peer == "192.0.2.2" && words[1] != "linux"
		}
		ip := peer
		if isPod {
			ip = map[string]string{"x/a": "10.42.0.2", "x/b": "10.42.0.3", "y/a": "10.42.0.4", "y/b": "10.42.0.5"}[name]
		}
		return netip.MustParsePrefix(words[1]).Contains(netip.MustParseAddr(ip))
	})
	return peerIn && (len(r.ports) == 0 || slices.ContainsFunc(r.ports, func(p string) bool {
		if p == "name web" {
			return protocol == "TCP" && strings.Contains(to, "/") && port == 8000+int(to[2])
		}
		var of string
		var first, last int
		fmt.Sscan(p, &of, &first, &last)
		return of == protocol && first <= port && port <= last
	}))
}

// allows is what the API specifies, read rule by rule.
func allows(policies []randomPolicy, isolated bool, d Direction, from, to, protocol string, port int) bool {
	subject, peer := from, to
	if d == Ingress {
		subject, peer = to, from
	}
	if !strings.Contains(subject, "/") {
		return true
	}
	if strings.Contains(peer, "/") {
		peer = "pod " + peer
	}
	tier := func(name string) string {
		for _, p := range policies {
			if p.tier != name || p.namespace != "" && p.namespace != subject[:1] {
				continue
			}
			for _, r := range p.rules[d] {
				if r.matches(from, to, protocol, port, peer) {
					return r.action
				}
			}
		}
		return "Pass"
	}
	if v := tier("Admin"); v != "Pass" {
		return v == "Accept"
	}
	if isolated && d == Ingress && subject[:1] == "x" { // the NetworkPolicy of the test
		return peer == "pod x/b" || protocol == "TCP" && port == 80
	}
	return tier("Baseline") != "Deny"
}

// spec is the policy as the API has it.
func (p randomPolicy) spec(t *testing.T) string {
	t.Helper()
	selector := func(key, value string) any {
		if value == "*" || value == "" {
			return map[string]any{}
		}
		return map[string]any{"matchLabels": map[string]any{key: value}}
	}
	rules := func(d Direction) (out []any) {
		for _, r := range p.rules[d] {
			var peers, ports []any
			for _, peer := range r.peers {
				switch words := strings.Fields(peer); {
				case words[0] == "pods" && words[2] == "*":
					peers = append(peers, map[string]any{"namespaces": selector("ns", words[1])})
				case words[0] == "pods":
					peers = append(peers, map[string]any{"pods": map[string]any{"namespaceSelector": selector("ns", words[1]), "podSelector": selector("app", words[2])}})
				case words[0] == "nodes":
					peers = append(peers, map[string]any{"nodes": selector("os", words[1])})
				default:
					peers = append(peers, map[string]any{"networks": []any{words[1]}})
				}
			}
			for _, port := range r.ports {
				var of string
				var first, last int
				if fmt.Sscan(port, &of, &first, &last); of == "name" {
					ports = append(ports, map[string]any{"destinationNamedPort": "web"})
					continue
				}
				number := map[string]any{"number": first}
				if last > first {
					number = map[string]any{"range": map[string]any{"start": first, "end": last}}
				}
				ports = append(ports, map[string]any{strings.ToLower(of): map[string]any{"destinationPort": number}})
			}
			out = append(out, map[string]any{"action": r.action, map[Direction]string{Egress: "to", Ingress: "from"}[d]: peers, "protocols": ports})
		}
		return out
	}
	b, err := json.Marshal(map[string]any{
		"tier": p.tier, "priority": p.priority, "subject": map[string]any{"namespaces": selector("ns", p.namespace)}, "ingress": rules(Ingress), "egress": rules(Egress),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRandomClusterPolicies: the tables decide about every connection as the API specifies.
func TestRandomClusterPolicies(t *testing.T) {
	const cases = 100
	for seed := range uint64(cases) {
		random := rand.New(rand.NewPCG(seed, 1))
		one := func(of ...string) string { return of[random.IntN(len(of))] }
		var policies []randomPolicy
		for i := range 1 + random.IntN(5) {
			p := randomPolicy{tier: one("Admin", "Baseline"), priority: random.IntN(3), name: string(rune('a' + i)), namespace: one("", "x", "y")}
			for d := range p.rules {
				for range random.IntN(4) {
					r := randomRule{action: one("Accept", "Deny", "Pass")}
					for range 1 + random.IntN(2) {
						kinds := []string{"pods * *", "pods x *", "pods y *", "pods * a", "pods x b", "networks 10.42.0.0/30", "networks 10.42.0.4/32", "networks 0.0.0.0/0", "networks 192.0.2.0/24", "nodes *", "nodes linux"}
						if Direction(d) == Ingress {
							kinds = kinds[:5]
						}
						r.peers = append(r.peers, one(kinds...))
					}
					for range random.IntN(3) {
						r.ports = append(r.ports, one("TCP 80 80", "TCP 79 8097", "UDP 50 60", "SCTP 7 7", "name web"))
					}
					p.rules[d] = append(p.rules[d], r)
				}
			}
			policies = append(policies, p)
		}
		isolated := random.IntN(2) == 0
		c := newCluster(t)
		if isolated {
			c.SetPolicy(policyOf(t, "podSelector: {}\ningress: [{from: [{podSelector: {matchLabels: {app: b}}}]}, {ports: [{port: 80}]}]"))
		}
		for _, p := range policies {
			for _, err := range c.SetClusterPolicy(clusterPolicyOf(t, p.name, p.spec(t))) {
				t.Fatal(err)
			}
		}
		c.SetNode(nodeNamed("n1", "linux", "192.0.2.1"))
		c.SetNode(nodeNamed("n2", "other", "192.0.2.2"))
		slices.SortFunc(policies, func(a, b randomPolicy) int { return cmp.Or(a.priority-b.priority, strings.Compare(a.name, b.name)) })
		ends := []string{"x/a", "x/b", "y/a", "y/b", "192.0.2.1", "192.0.2.2", "198.51.100.1"}
		for _, from := range ends {
			for _, to := range ends {
				for _, on := range []struct {
					protocol corev1.Protocol
					port     uint16
				}{{"TCP", 80}, {"TCP", 8097}, {"TCP", 8098}, {"UDP", 55}, {"UDP", 61}, {"SCTP", 7}, {"ICMP", 0}} {
					want := Deny
					if allows(policies, isolated, Egress, from, to, string(on.protocol), int(on.port)) && allows(policies, isolated, Ingress, from, to, string(on.protocol), int(on.port)) {
						want = Allow
					}
					if got := c.verdict(t, from, to, on.protocol, on.port); got != want {
						t.Fatalf("seed %d: %s to %s %s/%d: %s, want %s\nisolated %t\n%+v", seed, from, to, on.protocol, on.port, got, want, isolated, policies)
					}
				}
			}
		}
	}
}
