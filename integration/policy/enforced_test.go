package policy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// oldKernel puts a program before nft that rejects what a kernel without nftables' family bridge does.
func oldKernel(s *harness.Server) error {
	nft, err := exec.LookPath("nft")
	if err != nil {
		return err
	}
	program := s.Path("/opt/old-kernel/nft")
	if err := os.MkdirAll(filepath.Dir(program), 0o755); err != nil {
		return err
	}
	return os.WriteFile(program, []byte(`#!/bin/sh
rules=$(cat)
case "$rules" in *"table bridge"*) echo "Error: Could not process rule: Operation not supported" >&2; exit 1 ;; esac
printf '%s\n' "$rules" | exec `+nft+` "$@"
`), 0o755)
}

// testNotEnforced: writing a policy returns a warning while any node does not enforce it, and the Node has the reason.
// No pod runs on the two nodes that join.
func testNotEnforced(t *testing.T, c *harness.Cluster) {
	s := c.Server
	disabled := c.Join(t, harness.Options{Disable: []string{"network-policy"}, NoTestImage: true})
	old := c.Join(t, harness.Options{Prepare: oldKernel, Env: []string{"PATH=/opt/old-kernel:" + os.Getenv("PATH")}, NoTestImage: true})
	c.WaitReady(t)
	ns := c.Namespace(t)
	condition := func(node, want string) {
		t.Helper()
		harness.Eventually(t, 20*time.Second, "the condition of "+node, func() error {
			const of = `jsonpath={range .status.conditions[?(@.type=="KubelithNetworkPolicies")]}{.status} {.reason} {.message}{end}`
			if got := s.Kubectl(t, "get", "node", node, "-o", of); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	condition(s.NodeName(), "True Enforced network policies are enforced")
	condition(disabled.NodeName(), "False Disabled --disable network-policy")
	condition(old.NodeName(), "False KernelLacksFeature the kernel lacks nftables family bridge")
	const said = "network policies: not enforced on this node, the kernel lacks nftables family bridge: use a kernel with CONFIG_NF_TABLES_BRIDGE, and restart"
	if !strings.Contains(old.Logs(), said) {
		t.Error("the node has not logged what its kernel lacks")
	}

	s.KubectlInput(t, definition(t), "apply", "--server-side", "-f", "-")
	s.Kubectl(t, "wait", "--for=condition=Established", "crd/clusternetworkpolicies.policy.networking.k8s.io", harness.Timeout(20*time.Second))
	kinds := map[string]string{
		"networkpolicy":        "{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: p, namespace: " + ns + "}, spec: {podSelector: {}}}",
		"clusternetworkpolicy": "{apiVersion: policy.networking.k8s.io/v1alpha2, kind: ClusterNetworkPolicy, metadata: {name: p}, spec: {tier: Baseline, priority: 1, subject: {namespaces: {}}, egress: [{action: Deny, to: [{networks: [192.0.2.0/24]}]}]}}",
	}
	apply := func(kind string) harness.Result {
		t.Helper()
		file := s.Path("/tmp/" + kind + ".yaml")
		if err := os.WriteFile(file, []byte(kinds[kind]), 0o600); err != nil {
			t.Fatal(err)
		}
		return s.TryKubectl(t, "apply", "-f", file)
	}
	warning := fmt.Sprintf("Warning: network policies are not enforced for pods on %s (--disable network-policy), %s (the kernel lacks nftables family bridge)\n", disabled.NodeName(), old.NodeName())
	for kind := range kinds {
		for _, change := range []string{"create", "label"} {
			r := apply(kind)
			if change == "label" {
				r = s.TryKubectl(t, "-n", ns, "label", kind, "p", "changed=yes")
			}
			if r.Code != 0 || r.Stderr != warning {
				t.Errorf("%s of a %s: exit code %d, %q, want %q", change, kind, r.Code, r.Stderr, warning)
			}
		}
	}

	// A third party's network has its own policies.
	for _, n := range []*harness.Server{disabled, old} {
		file := n.Path("/etc/cni/net.d/10-other.conflist")
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(`{"cniVersion": "1.0.0", "name": "other", "plugins": [{"type": "loopback"}]}`), 0o600); err != nil {
			t.Fatal(err)
		}
		condition(n.NodeName(), "")
	}
	for kind := range kinds {
		s.Kubectl(t, "-n", ns, "delete", kind, "p")
		if r := apply(kind); r.Code != 0 || r.Stderr != "" {
			t.Errorf("a %s with a third party's network: exit code %d, %q", kind, r.Code, r.Stderr)
		}
	}
}
