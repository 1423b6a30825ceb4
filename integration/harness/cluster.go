package harness

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/host/sandbox"
)

// ClusterOptions describe a server and its agents on one Network.
type ClusterOptions struct {
	// Server and Agent are the options of the server and of each agent; StartCluster fills in Network and Agent.
	Server, Agent Options
	// Agents is the number of agents.
	Agents int
}

// Cluster is a server and its agents, each in its own sandbox.
type Cluster struct {
	Server *Server
	Agents []*Server

	network *sandbox.Network
	token   string
}

// StartCluster starts a server and its agents and waits until all nodes are Ready.
func StartCluster(t testing.TB, opts ClusterOptions) *Cluster {
	t.Helper()
	c := &Cluster{network: &sandbox.Network{}}
	opts.Server.Network = c.network
	c.Server = Start(t, opts.Server)
	for range opts.Agents {
		c.Join(t, opts.Agent)
	}
	c.WaitReady(t)
	return c
}

// Prepare creates the sandbox of one more agent, which is not started and not yet one of Agents.
func (c *Cluster) Prepare(t testing.TB, opts Options, join AgentOptions) *Server {
	t.Helper()
	join.Of = c.Server
	opts.Network, opts.Agent = c.network, &join
	return New(t, opts)
}

// Join starts one more agent and does not wait for it.
func (c *Cluster) Join(t testing.TB, opts Options) *Server {
	t.Helper()
	if c.token == "" {
		c.token = c.Server.Token(t)
	}
	a := c.Prepare(t, opts, AgentOptions{Token: c.token})
	c.Agents = append(c.Agents, a)
	a.Launch(t)
	return a
}

// Nodes returns the server and its agents.
func (c *Cluster) Nodes() []*Server { return append([]*Server{c.Server}, c.Agents...) }

// WaitReady waits until all nodes are Ready.
func (c *Cluster) WaitReady(t testing.TB) {
	t.Helper()
	for _, n := range c.Nodes() {
		n.WaitReady(t)
	}
}

// NodeOf returns the node that a pod runs on. The pod must carry its spec as Run returns it.
func (c *Cluster) NodeOf(t testing.TB, pod *corev1.Pod) *Server {
	t.Helper()
	for _, n := range c.Nodes() {
		if n.NodeName() == pod.Spec.NodeName {
			return n
		}
	}
	t.Fatalf("pod %s is on node %q, which is not one of the cluster's", pod.Name, pod.Spec.NodeName)
	return nil
}

// ContainerPID is Server.ContainerPID on the node of the pod.
func (c *Cluster) ContainerPID(t testing.TB, pod *corev1.Pod, container string) int {
	t.Helper()
	return c.NodeOf(t, pod).ContainerPID(t, pod, container)
}

// Namespace is Server.Namespace; when the test has failed, it also shows the agents' logs.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for _, a := range c.Agents {
			t.Logf("last lines of the log of agent %s:\n%s", a.NodeName(), lastLines(a.Logs(), 60))
		}
	})
	return c.Server.Namespace(t)
}
