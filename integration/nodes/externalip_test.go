package nodes

import (
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestExternalIPs: a server and an agent have the external addresses of their settings: in their Nodes, in their
// certificates and in Services. The setting may go and come back.
func TestExternalIPs(t *testing.T) {
	t.Parallel()
	const settings = "apiVersion: kubelith.io/v1alpha1\nkind: AgentConfig\n"
	const external = "nodeExternalIP: [203.0.113.2]\n"
	c := harness.StartCluster(t, harness.ClusterOptions{Server: harness.Options{Args: []string{"--node-external-ip=203.0.113.1"}}})
	agent := c.Join(t, harness.Options{ConfigYAML: settings + external})
	c.WaitReady(t)
	has := func(n *harness.Server, external string) {
		t.Helper()
		want := "InternalIP=" + n.NodeIP + " "
		if external != "" {
			want += "ExternalIP=" + external + " "
		}
		want += "Hostname=" + n.NodeName()
		harness.Eventually(t, 30*time.Second, "the addresses of "+n.NodeName(), func() error {
			node, err := c.Server.Client(t).CoreV1().Nodes().Get(t.Context(), n.NodeName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got []string
			for _, a := range node.Status.Addresses {
				got = append(got, string(a.Type)+"="+a.Address)
			}
			if text := strings.Join(got, " "); text != want || len(node.Spec.Taints) > 0 {
				return fmt.Errorf("%s, taints %v, want %s", text, node.Spec.Taints, want)
			}
			return nil
		})
	}
	certificate := func(what string, n *harness.Server, port, external string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, what, func() error {
			conn, err := tls.Dial("tcp", net.JoinHostPort(n.NodeIP, port), &tls.Config{InsecureSkipVerify: true}) // whose it is does not matter
			if err != nil {
				return err
			}
			defer conn.Close()
			return conn.ConnectionState().PeerCertificates[0].VerifyHostname(external)
		})
	}
	has(c.Server, "203.0.113.1")
	has(agent, "203.0.113.2")
	certificate("the API's certificate", c.Server, "6443", "203.0.113.1")
	certificate("the server's kubelet's certificate", c.Server, "10250", "203.0.113.1")
	certificate("the agent's kubelet's certificate", agent, "10250", "203.0.113.2")

	ns := c.Namespace(t)
	pods := []*corev1.Pod{c.Server.Run(t, on(agent, web(ns, "web", "web")))}
	svc := service(t, c, ns, "web", func(svc *corev1.Service) { svc.Spec.Type = corev1.ServiceTypeLoadBalancer })
	harness.Eventually(t, 60*time.Second, "all addresses of the Service", func() error {
		now, err := c.Server.Client(t).CoreV1().Services(ns).Get(t.Context(), svc.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		text := fmt.Sprint(now.Status.LoadBalancer.Ingress)
		for _, ip := range []string{c.Server.NodeIP, agent.NodeIP, "203.0.113.1", "203.0.113.2"} {
			if !strings.Contains(text, ip+" ") {
				return fmt.Errorf("the Service lacks %s, it has %s", ip, text)
			}
		}
		return nil
	})
	dialer(c.Server.DialContext).mustReachAll(t, "an external address", "203.0.113.2", 80, pods)

	for _, change := range []struct{ file, external string }{{settings, ""}, {settings + external, "203.0.113.2"}} {
		if err := os.WriteFile(agent.Path("/etc/kubelith/config.yaml"), []byte(change.file), 0o600); err != nil {
			t.Fatal(err)
		}
		agent.Restart(t)
		has(agent, change.external)
	}
}
