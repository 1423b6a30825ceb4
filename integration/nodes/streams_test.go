package nodes

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// testStreams: logs, exec, attach, port-forward and top work on these nodes, though the names of all nodes resolve to
// addresses that lead nowhere.
func testStreams(t *testing.T, c *harness.Cluster, nodes ...*harness.Server) {
	for i, n := range c.Nodes() {
		hosts, err := os.OpenFile(c.Server.Path("/etc/hosts"), os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(hosts, "192.0.2.%d %s\n", 1+i, n.NodeName())
		hosts.Close()
		if out := c.Server.Exec(t, "getent", "hosts", n.NodeName()); !strings.HasPrefix(out, "192.0.2.") {
			t.Fatalf("the name of a node resolves to %s", out)
		}
	}
	ns := c.Namespace(t)
	parts := []harness.Part{{Name: "top", Run: func(t *testing.T) { testTop(t, c, ns, nodes) }}}
	for _, n := range nodes {
		parts = append(parts, harness.Part{Name: n.NodeName(), Run: func(t *testing.T) {
			s := c.Server
			pod := on(n, harness.Pod(ns, "talks-"+n.NodeName(), harness.Shell("echo started; while read line; do echo heard $line; [ $line = end ] && exit 0; done")...))
			pod.Spec.Containers[0].Stdin, pod.Spec.Containers[0].StdinOnce = true, true
			pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("serves", "/bin/probe", "serve"))
			pod = s.Run(t, pod)

			harness.Eventually(t, 20*time.Second, "its log", func() error {
				if got := s.Kubectl(t, "-n", ns, "logs", pod.Name, "-c", "main"); got != "started\n" {
					return fmt.Errorf("%q", got)
				}
				return nil
			})
			if got := s.KubectlInput(t, "through", "-n", ns, "exec", "-i", pod.Name, "-c", "main", "--", "cat"); got != "through" {
				t.Errorf("exec: %q", got)
			}
			if got := s.PodExec(t, pod, "serves", "hostname"); got != pod.Name+"\n" {
				t.Errorf("exec over WebSocket: %q", got)
			}
			forwarded := s.PortForward(t, ns, "pod/"+pod.Name, "8080")
			harness.Eventually(t, 10*time.Second, "an answer through port-forward", func() error {
				body, err := s.HTTPGet("http://" + forwarded + "/hostname")
				if err == nil && body != pod.Name {
					err = fmt.Errorf("the answer is %q", body)
				}
				return err
			})
			attach := s.KubectlCommand("-n", ns, "attach", "-i", pod.Name, "-c", "main")
			attach.Stdin = strings.NewReader("one\nend\n")
			if out, err := attach.Output(); err != nil || !strings.Contains(string(out), "heard one\nheard end\n") {
				t.Errorf("attach: %v, %q", err, out)
			}
		}})
	}
	together(t, parts...)
}
