package nodes

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestThreeNodes takes one cluster of three nodes through its life: all talk to all by vxlan; nodes, the server and
// the wire fail; the backend changes to host-gw, the server's address changes, the backend changes back.
func TestThreeNodes(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{
		Agents: 2,
		// By default it takes 50 s to see that a node is gone.
		Server: harness.Options{Args: []string{"--controller-manager-arg=node-monitor-grace-period=25s"}},
	})
	steps := []struct {
		name string
		run  func(*testing.T, *harness.Cluster)
	}{
		{"vxlan", testTraffic("vxlan",
			trafficPart{"streams", func(t *testing.T, c *harness.Cluster, _ string, _ []*corev1.Pod) { testStreams(t, c, c.Agents...) }},
			trafficPart{"daemon-set", testDaemonSet},
		)},
		{"drain", testDrain},
		{"partition", testPartition},
		{"server-away", testServerAway},
		{"node-stops", testNodeStops},
		{"change-to-host-gw", func(t *testing.T, c *harness.Cluster) { changeBackend(t, c, "host-gw") }},
		{"host-gw", testTraffic("host-gw")},
		{"server-address", testServerAddress},
		{"change-to-vxlan", func(t *testing.T, c *harness.Cluster) { changeBackend(t, c, "vxlan") }},
	}
	for _, s := range steps {
		if !t.Run(s.name, func(t *testing.T) { s.run(t, c) }) && t.Failed() {
			// The next step may depend on this one: log which nodes are Ready after it.
			for _, n := range c.Nodes() {
				t.Logf("after %s: %s", s.name, conditionsOf(t, n))
			}
		}
	}
}

func conditionsOf(t *testing.T, n *harness.Server) string {
	res := n.TryKubectl(t, "get", "node", n.NodeName(), "--no-headers", "--output=wide")
	return strings.TrimSpace(res.Stdout + res.Stderr)
}

// configure writes what differs from the defaults into a node's configuration file.
func configure(t *testing.T, n *harness.Server, lines ...string) {
	t.Helper()
	kind := "ServerConfig"
	if n.Agent != nil {
		kind = "AgentConfig"
	}
	text := "apiVersion: kubelith.io/v1alpha1\nkind: " + kind + "\n" + strings.Join(lines, "\n") + "\n"
	if err := os.MkdirAll(n.Path("/etc/kubelith"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(n.Path("/etc/kubelith/config.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// changeBackend starts the server with another backend. The agents notice and exit so that their service managers
// restart them. Nothing of the old backend remains, and pods from before still reach each other.
func changeBackend(t *testing.T, c *harness.Cluster, backend string) {
	ns := c.Namespace(t)
	pods := everywhere(t, c, ns, "old")
	c.Server.Stop(t)
	configure(t, c.Server, append(settingsOf(c), "network: "+backend)...)
	c.Server.Launch(t)
	for _, a := range c.Agents {
		if code := a.WaitExit(t, 90*time.Second); code == 0 {
			t.Errorf("agent %s ended with exit code 0 after a change of backend: no service manager starts it again", a.NodeName())
		}
		a.Launch(t)
	}
	c.WaitReady(t)
	for _, n := range c.Nodes() {
		harness.Eventually(t, 30*time.Second, "routes of "+backend+" on "+n.NodeName(), func() error { return routesAre(t, c, n, backend) })
	}
	for i, p := range pods {
		next := pods[(i+1)%len(pods)]
		within(t, c, p).mustAsk(t, p.Name+" to "+next.Name, next.Status.PodIP, 8080)
	}
}

// settingsOf are settings of the server from an earlier step.
func settingsOf(c *harness.Cluster) []string {
	if !strings.HasSuffix(c.Server.NodeIP, ".2") {
		return []string{"nodeIP: [" + c.Server.NodeIP + "]"}
	}
	return nil
}

// routesAre compares a node's routes to the pods of the others, and its interfaces, with what a backend creates.
func routesAre(t *testing.T, c *harness.Cluster, n *harness.Server, backend string) error {
	t.Helper()
	var want []string
	for _, peer := range c.Nodes() {
		if peer == n {
			continue
		}
		cidr := peer.Node(t).Spec.PodCIDR
		if backend == "vxlan" {
			want = append(want, fmt.Sprintf("%s via %s dev flannel.1", cidr, strings.TrimSuffix(cidr, "/24")))
		} else {
			want = append(want, fmt.Sprintf("%s via %s dev eth0", cidr, peer.NodeIP))
		}
	}
	var got []string
	for line := range strings.Lines(n.Exec(t, "ip", "-4", "route", "show", "table", "all")) {
		// CIDR via GATEWAY dev LINK and more, such as whose it is; a table of the kernel's begins with the kind of
		// route.
		f := strings.Fields(line)
		if strings.HasPrefix(f[0], "10.42.") && !slices.Contains(f, "cni0") {
			got = append(got, strings.Join(f[:min(5, len(f))], " "))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("node %s has the routes %q, not %q", n.NodeName(), got, want)
	}
	if has := n.LinkCounter(t, "flannel.1", "tx_packets") >= 0; has != (backend == "vxlan") {
		return fmt.Errorf("with %s node %s has the interface flannel.1: %t", backend, n.NodeName(), has)
	}
	return nil
}

// testServerAddress gives the server another address and removes the old one. Agents that get the new one go on.
func testServerAddress(t *testing.T, c *harness.Cluster) {
	ns := c.Namespace(t)
	pods := everywhere(t, c, ns, "web")
	svc := service(t, c, ns, "web", nil)
	before := startTimes(t, c, pods[1])
	old, other := c.Server.NodeIP, strings.TrimSuffix(c.Server.HostIP, ".1")+".200"
	c.Server.Stop(t)
	c.Server.AddAddress(t, other)
	c.Server.RemoveAddress(t, old)
	c.Server.NodeIP = other // where the harness finds the API, and what it passes to the agents
	configure(t, c.Server, append(settingsOf(c), "network: host-gw")...)
	c.Server.Launch(t)
	c.Server.WaitReady(t)
	back := time.Now()
	for _, a := range c.Agents {
		a.Stop(t)
		a.Launch(t)
	}
	for _, a := range c.Agents {
		renewed(t, a, back)
		a.WaitReady(t)
	}
	for _, n := range c.Nodes() {
		harness.Eventually(t, 30*time.Second, "routes with the new address on "+n.NodeName(), func() error { return routesAre(t, c, n, "host-gw") })
	}
	for _, p := range pods {
		within(t, c, p).mustReachAll(t, "the Service from "+p.Name, svc.Spec.ClusterIP, 80, pods)
	}
	if after := startTimes(t, c, pods[1]); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("the containers of an agent were started again: %v, before %v", after, before)
	}
	harness.Eventually(t, 30*time.Second, "exec on an agent", func() error {
		_, _, err := c.Server.TryPodExec(t, pods[1], "main", "/bin/true")
		return err
	})
}
