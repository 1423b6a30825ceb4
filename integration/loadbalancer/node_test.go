package loadbalancer

import (
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

const (
	enabled  = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	disabled = enabled + "disable: [servicelb]\n"
)

// settings writes the server's configuration file for its next start.
func settings(t *testing.T, s *harness.Server, text string) {
	t.Helper()
	if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestNode follows one node through its labels, a restart and a server without the load balancer.
func TestNode(t *testing.T) {
	t.Parallel()
	// A restart may take longer than the 50 s after which a node is Unknown by default.
	s := harness.Start(t, harness.Options{ConfigYAML: enabled, Args: []string{"--controller-manager-arg=node-monitor-grace-period=10m"}})
	ns := s.Namespace(t)
	web(t, s, ns, "web")
	balanced(t, s, ns, "web", "web", 80)
	balanced(t, s, ns, "pool", "web", 81, func(svc *corev1.Service) {
		svc.Annotations = map[string]string{"kubelith.io/servicelb-pool": "dmz"}
	})
	other := "example.org/lb"
	balanced(t, s, ns, "theirs", "web", 82, func(svc *corev1.Service) { svc.Spec.LoadBalancerClass = &other })
	s.Kubectl(t, "-n", ns, "patch", "service", "theirs", "--subresource=status", "--type=merge", "-p",
		`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}}}`)
	waitAddresses(t, s, ns, "web", s.NodeIP)
	mustAsk(t, outside(), url(s.NodeIP, 80))

	waitEvent(t, s, ns, "pool", "NoAddress", "no node has the label kubelith.io/servicelb=dmz")
	node := strings.TrimSpace(s.Kubectl(t, "get", "nodes", "-o=name"))
	s.Kubectl(t, "label", node, "kubelith.io/servicelb=dmz")
	waitAddresses(t, s, ns, "pool", s.NodeIP)
	mustAsk(t, outside(), url(s.NodeIP, 81))
	s.Kubectl(t, "label", node, "kubelith.io/servicelb=false", "--overwrite")
	waitAddresses(t, s, ns, "pool")
	waitAddresses(t, s, ns, "web")
	harness.Eventually(t, patience, "the port to be closed", func() error { return refuses(url(s.NodeIP, 80)) })
	s.Kubectl(t, "label", node, "kubelith.io/servicelb-")
	waitAddresses(t, s, ns, "web", s.NodeIP)
	mustAsk(t, outside(), url(s.NodeIP, 80))

	// A kubelet that starts again is not ready for a moment: the address stays, and answers.
	before := len(s.Logs())
	s.Stop(t)
	if a := mustAsk(t, outside(), url(s.NodeIP, 80)); a.Hostname != "web" {
		t.Errorf("while the server is away: %q", a.Hostname)
	}
	s.Launch(t)
	s.WaitReady(t)
	harness.Consistently(t, 5*time.Second, "after a restart", func() error { return hasAddresses(t, s, ns, "web", s.NodeIP) })
	if strings.Contains(s.Logs()[before:], "no longer has an address") {
		t.Error("the address was away for a time")
	}
	mustAsk(t, outside(), url(s.NodeIP, 80))

	settings(t, s, disabled)
	s.Restart(t)
	waitAddresses(t, s, ns, "web")
	harness.Eventually(t, patience, "the port to be closed", func() error { return refuses(url(s.NodeIP, 80)) })
	if err := hasAddresses(t, s, ns, "theirs", "192.0.2.1"); err != nil {
		t.Errorf("an address that another client wrote: %v", err)
	}
	balanced(t, s, ns, "new", "web", 83)
	harness.Consistently(t, 2*time.Second, "a new Service", func() error { return hasAddresses(t, s, ns, "new") })

	settings(t, s, enabled)
	s.Restart(t)
	waitAddresses(t, s, ns, "web", s.NodeIP)
	waitAddresses(t, s, ns, "new", s.NodeIP)
	if a := mustAsk(t, outside(), url(s.NodeIP, 80)); a.Hostname != "web" {
		t.Errorf("answered by %q", a.Hostname)
	}
}
