package policy

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// testDropLog: with --network-policy-log, on a server and on an agent, each node logs who was not allowed to send to
// whom, and by which policy.
func testDropLog(t *testing.T, c *harness.Cluster) {
	s := c.Server
	ns := c.Namespace(t)
	policy(t, s, ns, "closed", "podSelector: {matchExpressions: [{key: app, operator: In, values: [a, b]}]}\npolicyTypes: [Ingress]")
	web := s.Run(t, server(ns, "web"))
	inWeb := c.ContainerPID(t, web, "main")
	for i, n := range []*harness.Server{s, c.Agents[0]} {
		name := string(rune('a' + i))
		pod := server(ns, name)
		pod.Spec.NodeName = n.NodeName()
		pod = s.Run(t, pod)
		target := net.JoinHostPort(pod.Status.PodIP, "9000")
		check(t, "on "+n.NodeName(), probe{"web to " + name, inWeb, "tcp", target, false}, probe{"web to " + name, inWeb, "udp", target, false})
		for _, protocol := range []string{"TCP", "UDP"} {
			want := fmt.Sprintf("component=network-policy dropped %s/web (%s) to %s/%s (%s) %s port 9000: ingress, no rule of NetworkPolicy %s/closed matches",
				ns, web.Status.PodIP, ns, name, pod.Status.PodIP, protocol, ns)
			harness.Eventually(t, 10*time.Second, "a line in the log of "+n.NodeName(), func() error {
				if !strings.Contains(n.Logs(), want) {
					return errors.New("the log has no line " + want)
				}
				return nil
			})
		}
	}
}
