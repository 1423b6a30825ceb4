package node

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/host/preflight"
)

// check reports in one line that the cluster cannot be joined, and still checks the host.
func TestPreflightAgent(t *testing.T) {
	cfg, _ := plannedAgent(t)
	results := PreflightAgent(t.Context(), cfg)
	if first := results[0]; first.Name != "cluster" || first.Status != preflight.Fail || !strings.Contains(first.Message, "a token is needed") {
		t.Errorf("first result %v", first)
	}
	if len(results) < 2 {
		t.Error("the host was not checked")
	}
	if _, err := os.Stat(cfg.DataDir); err == nil {
		t.Error("the data directory was created")
	}
}

// The CA of the cluster is one that the clock can be compared with.
func TestAgentNotBefore(t *testing.T) {
	cfg, m := plannedAgent(t)
	bundle, err := pki.Ensure(pki.Options{Dir: filepath.Join(t.TempDir(), "tls"), NodeName: "n", ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(bundle.ClusterCA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	stored := filepath.Join(cfg.DataDir, "agent", "pki", "cluster-ca.crt")
	if err := os.MkdirAll(filepath.Dir(stored), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stored, ca, 0o600); err != nil {
		t.Fatal(err)
	}
	if opts := agentCheckOptions(cfg, m.cluster, nil); opts.NotBeforeOf != stored+" is valid from" {
		t.Errorf("compared with what %s", opts.NotBeforeOf)
	}
}

// TestOtherAddress: a node whose address was found by the default route warns when it reaches its server from another
// one.
func TestOtherAddress(t *testing.T) {
	for name, tc := range map[string]struct {
		from string
		node []string
		want string
	}{
		"the same":   {"192.0.2.3", []string{"192.0.2.3"}, ""},
		"one of two": {"2001:db8::3", []string{"192.0.2.3", "2001:db8::3"}, ""},
		"another": {"192.0.2.3", []string{"10.0.2.15"}, "node ip: this machine reaches the server from 192.0.2.3, not from 10.0.2.15, " +
			"the address of its default route: set --node-ip 192.0.2.3 if the other nodes are on that network"},
		"another of two": {"192.0.2.3", []string{"10.0.2.15", "2001:db8::3"},
			"node ip: this machine reaches the server from 192.0.2.3, not from 10.0.2.15,"},
		"another family": {"2001:db8::3", []string{"192.0.2.3"}, ""},
		"a tunnel":       {"127.0.0.1", []string{"192.0.2.3"}, ""},
	} {
		var node []net.IP
		for _, ip := range tc.node {
			node = append(node, net.ParseIP(ip))
		}
		results := otherAddress(net.ParseIP(tc.from), node)
		if tc.want == "" && len(results) == 0 {
			continue
		}
		if len(results) != 1 || tc.want == "" || results[0].Status != preflight.Warn ||
			!strings.HasPrefix(results[0].Problem(), tc.want) {
			t.Errorf("%s: %v, want %q", name, results, tc.want)
		}
	}
}
