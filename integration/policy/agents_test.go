package policy

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/integration/harness"
)

// TestAgents runs the tests that need an agent, in one cluster.
func TestAgents(t *testing.T) {
	node := harness.Options{Args: []string{"--network-policy-log=10"}}
	c := harness.StartCluster(t, harness.ClusterOptions{Server: node, Agent: node, Agents: 1})
	harness.Step(t, "DropLog", func(t *testing.T) { testDropLog(t, c) })
	harness.Step(t, "Agent", func(t *testing.T) { testAgent(t, c) })
	harness.Step(t, "NotEnforced", func(t *testing.T) { testNotEnforced(t, c) })
}

// testAgent: an agent enforces policies by what other nodes' pods are, before a pod's first packet too, and while the
// server is dead. It may not read those pods.
func testAgent(t *testing.T, c *harness.Cluster) {
	s, agent := c.Server, c.Agents[0]
	ns := c.Namespace(t)
	on := func(pod *corev1.Pod, n *harness.Server) *corev1.Pod {
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.NodeName()}
		return pod
	}
	a := s.Run(t, on(server(ns, "a"), agent))
	b, d := s.Run(t, on(server(ns, "b"), s)), s.Run(t, on(server(ns, "d"), s))
	inB, inD, address := c.ContainerPID(t, b, "main"), c.ContainerPID(t, d, "main"), net.JoinHostPort(a.Status.PodIP, "9000")
	policy(t, s, ns, "some", `
podSelector: {matchLabels: {app: a}}
ingress: [{from: [{podSelector: {matchLabels: {app: b}}}]}]`)
	check(t, "on the agent", probe{"d to a", inD, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true},
		probe{"the agent to a", agent.PID(), "tcp", address, true}, probe{"the server to a", s.PID(), "tcp", address, false})
	// A pod of the host's network does not have its own address: its node's does not become a pod's.
	host := harness.Pod(ns, "host", "/bin/probe", "sleep")
	host.Labels, host.Spec.HostNetwork = map[string]string{"app": "b"}, true
	s.Run(t, on(host, s))
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=b", "--overwrite")
	check(t, "with the label", probe{"d to a", inD, "tcp", address, true}, probe{"the server, where a pod of the host's network has the label, to a", s.PID(), "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=d", "--overwrite")
	check(t, "without the label", probe{"d to a", inD, "tcp", address, false})

	s.Kill9(t)
	check(t, "while the server is dead", probe{"d to a", inD, "tcp", address, false}, probe{"b to a", inB, "tcp", address, true})
	// No policy selects this pod, but no server can inform the agent of that: it is closed.
	inStatic, toStatic := staticPod(t, agent, ns)
	inA, toB := c.ContainerPID(t, a, "main"), net.JoinHostPort(b.Status.PodIP, "9000")
	check(t, "a pod that the server has not heard of", probe{"the agent to it", agent.PID(), "tcp", toStatic, true},
		probe{"a to it", inA, "tcp", toStatic, false}, probe{"it to b", inStatic, "tcp", toB, false}, probe{"a to b", inA, "tcp", toB, true})
	s.Launch(t)
	s.WaitReady(t)
	s.Kubectl(t, "-n", ns, "label", "pod", "d", "app=b", "--overwrite")
	harness.Eventually(t, 20*time.Second, "the agent to follow the server again", func() error { return ask(t.Context(), inD, "tcp", address, allowance) })
	if out := s.TryKubectl(t, "auth", "can-i", "list", "pods", "-A", "--as=system:node:"+agent.NodeName(), "--as-group=system:nodes"); !strings.Contains(out.Stdout, "no") {
		t.Errorf("may the agent read all pods? %s", out.Stdout)
	}
}

// staticPod starts a pod from a file of the agent, without the API, and returns a process in its network and where it
// serves.
func staticPod(t *testing.T, agent *harness.Server, ns string) (pid int, address string) {
	t.Helper()
	pod := server(ns, "static")
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	manifest, err := yaml.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	file := agent.Path(harness.DataDir + "/agent/static-pods/static.yaml")
	if err := os.WriteFile(file, manifest, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
	harness.Eventually(t, time.Minute, "the static pod", func() error {
		files, err := filepath.Glob(agent.Path(harness.RunDir + "/network-policy/*"))
		if err != nil {
			return err
		}
		for _, f := range files {
			var connected struct {
				Sandbox, Name string
				IPs           []string
			}
			content, err := os.ReadFile(f)
			if err != nil || json.Unmarshal(content, &connected) != nil || !strings.HasPrefix(connected.Name, "static-") {
				continue
			}
			address = net.JoinHostPort(connected.IPs[0], "9000")
			if pid, err = agent.TaskPID(connected.Sandbox); err != nil {
				return err
			}
			return ask(t.Context(), agent.PID(), "tcp", address, allowance)
		}
		return fmt.Errorf("it is none of %d pods", len(files))
	})
	return pid, address
}
