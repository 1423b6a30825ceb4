package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// testTunnels: each of two servers has its own tunnel to an agent that it cannot reach. When the server dies at which
// the agent joined, the other goes on, and the first has a tunnel again when it is back. A witness keeps the majority.
func testTunnels(t *testing.T, c *cluster, w *harness.Server) {
	c.witnessVotes(t, w)
	first, second := c.servers[0], c.servers[1]
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	agent.Exec(t, "nft", `add table inet klt_nat
add chain inet klt_nat in { type filter hook prerouting priority -150; }
add rule inet klt_nat in iifname eth0 meta l4proto { tcp, udp, icmp } ct state new drop`)
	agent.Launch(t)
	agent.WaitReady(t)
	pod := harness.Pod(first.Namespace(t), "far", harness.Shell("echo started; exec /bin/probe serve")...)
	pod.Spec.NodeName = agent.NodeName()
	pod = first.Run(t, pod)

	for _, s := range c.servers {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		if conn, err := s.DialContext(ctx, "tcp", net.JoinHostPort(agent.NodeIP, "10250")); err == nil {
			conn.Close()
			t.Fatalf("%s reaches the agent: this test would prove nothing", s.NodeName())
		}
		cancel()
	}
	through := func(when string, servers ...*harness.Server) {
		for _, s := range servers {
			began := time.Now()
			harness.Eventually(t, time.Minute, "logs, exec and port-forward through "+s.NodeName()+" "+when, func() error { return streams(t, s, pod) })
			streamed := time.Since(began)
			harness.Eventually(t, 2*time.Minute, "top through "+s.NodeName()+" "+when, func() error { return tops(t, s, agent.NodeName(), pod) })
			t.Logf("through %s %s: streams after %s, top after %s", s.NodeName(), when, streamed.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
		}
	}
	through("at first", first, second)
	first.Kill9(t)
	through("after "+first.NodeName()+" was killed", second)
	first.Launch(t)
	first.WaitAPI(t)
	through("after "+first.NodeName()+" came back", first, second)
	second.Kill9(t)
	through("after "+second.NodeName()+" was killed", first)
}

// streams returns what does not work through a server. It starts programs only once the server has a tunnel.
func streams(t *testing.T, s *harness.Server, pod *corev1.Pod) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // as in says
	defer cancel()
	if _, err := s.Client(t).CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(ctx); err != nil {
		return err
	}
	err := errors.Join(
		says(t, s, "started\n", "-n", pod.Namespace, "logs", pod.Name),
		says(t, s, pod.Name+"\n", "-n", pod.Namespace, "exec", pod.Name, "--", "hostname"))
	if err != nil {
		return err
	}
	body, err := s.HTTPGet("http://" + s.PortForward(t, pod.Namespace, "pod/"+pod.Name, "8080") + "/hostname")
	if err == nil && body != pod.Name {
		err = fmt.Errorf("the answer is %q", body)
	}
	return err
}

// tops returns why a server does not know the use of the node and of the pod. It starts programs only once the API has
// both.
func tops(t *testing.T, s *harness.Server, node string, pod *corev1.Pod) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // as in says
	defer cancel()
	for _, path := range []string{"nodes/" + node, "namespaces/" + pod.Namespace + "/pods/" + pod.Name} {
		if _, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/" + path).DoRaw(ctx); err != nil {
			return err
		}
	}
	return errors.Join(
		says(t, s, node, "top", "node", node, "--no-headers"),
		says(t, s, pod.Name, "-n", pod.Namespace, "top", "pod", pod.Name, "--no-headers"))
}

// says returns an error unless the output of kubectl begins with a text.
func says(t *testing.T, s *harness.Server, want string, args ...string) error {
	t.Helper()
	if r := s.TryKubectl(t, append([]string{"--request-timeout=10s"}, args...)...); !strings.HasPrefix(r.Stdout, want) {
		return fmt.Errorf("kubectl %s: %q %s", strings.Join(args, " "), r.Stdout, r.Stderr)
	}
	return nil
}
