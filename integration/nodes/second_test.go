package nodes

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestSecondNode: VXLAN's device and its packet filter exist while there is another node. Its coming and going does not
// interrupt connections of this node's pods. The second node's Node is deleted and it registers again; the machine
// joins again; another machine takes its name.
func TestSecondNode(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{})
	s, ns := c.Server, c.Namespace(t)
	connected := func(n *harness.Server, want bool) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, fmt.Sprintf("VXLAN on %s: %t", n.NodeName(), want), func() error {
			device := n.LinkCounter(t, "flannel.1", "tx_packets") >= 0
			filter := n.TryExec(t, "nft", "list", "table", "inet", "kubelith_vxlan").Code == 0
			if device != want || filter != want {
				return fmt.Errorf("device %t, packet filter %t", device, filter)
			}
			return nil
		})
	}
	client, server := s.Create(t, on(s, web(ns, "client", "web"))), s.Create(t, on(s, web(ns, "server", "web")))
	client, server = s.WaitRunning(t, client), s.WaitRunning(t, server)
	connected(s, false)
	conn, err := within(t, c, client)(t.Context(), "tcp", net.JoinHostPort(server.Status.PodIP, "9000"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	answers := bufio.NewReader(conn)
	echoes := func(when string) {
		t.Helper()
		if err := conn.SetDeadline(time.Now().Add(harness.Patience(10 * time.Second))); err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintln(conn, when); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		if got, err := answers.ReadString('\n'); err != nil || !strings.HasSuffix(got, ": "+when+"\n") {
			t.Fatalf("%s: %q, %v", when, got, err)
		}
	}
	echoes("alone")

	token := s.Token(t)
	a := c.Prepare(t, harness.Options{}, harness.AgentOptions{Token: token})
	c.Agents = append(c.Agents, a)
	a.Launch(t)
	c.WaitReady(t)
	connected(s, true)
	connected(a, true)
	there := s.Create(t, on(a, web(ns, "there", "web")))
	there = s.WaitRunning(t, there)
	within(t, c, client).mustAsk(t, "the agent's pod", there.Status.PodIP, 8080)
	echoes("with a second node")
	packets := regexp.MustCompile(`packets (\d+) `)
	dropped := func() string {
		out := s.Exec(t, "nft", "list", "counter", "inet", "kubelith_vxlan", "dropped")
		return packets.FindStringSubmatch(out)[1]
	}
	if n := dropped(); n != "0" {
		t.Errorf("%s packets of the nodes were dropped", n)
	}
	foreign, err := (&net.Dialer{}).DialContext(t.Context(), "udp", net.JoinHostPort(s.NodeIP, "8472"))
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if _, err := foreign.Write([]byte("not of the cluster")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 10*time.Second, "the foreign packet to be dropped", func() error {
		if n := dropped(); n != "1" {
			return errors.New(n)
		}
		return nil
	})

	a.Stop(t) // it would register again
	connected(a, true)
	remove(t, c, a.NodeName())
	connected(s, false)
	echoes("without the second node")
	a.Agent.Token = "" // it has its certificate
	a.Launch(t)
	a.WaitReady(t)
	connected(s, true)
	echoes("with the second node again")
	again := s.Create(t, on(a, web(ns, "again", "web")))
	again = s.WaitRunning(t, again)
	within(t, c, client).mustAsk(t, "the agent's pod again", again.Status.PodIP, 8080)

	if !t.Run("same machine", func(t *testing.T) { testSameMachine(t, c, a, token) }) {
		return
	}
	a.Stop(t)
	remove(t, c, a.NodeName())
	// The next node of that name would run its pods.
	now := int64(0)
	if err := s.Client(t).CoreV1().Pods(ns).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &now},
		metav1.ListOptions{FieldSelector: "spec.nodeName=" + a.NodeName()}); err != nil {
		t.Fatal(err)
	}
	t.Run("another machine", func(t *testing.T) { testLife(t, c, a.NodeName(), token) })
}
