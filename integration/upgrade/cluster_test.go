package upgrade

import (
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

// withFailure makes TestCluster begin with a program that fails: make upgrade-cluster-test sets it.
const withFailure = "KUBELITH_UPGRADE_CLUSTER_FAILURE"

// TestCluster: two servers and an agent. With withFailure, a program that fails stops at the first node, and the others are untouched; a
// good one reaches all nodes, and no container is restarted; run again, it changes nothing.
func TestCluster(t *testing.T) {
	network := &sandbox.Network{}
	first := harness.New(t, harness.Options{Network: network})
	m := install(t, first, first.BinaryPath())
	m.do("start")
	first.WaitReady(t)
	second := joinServer(t, first, network)
	withVote(t, first, second.s.NodeName())
	a := harness.New(t, harness.Options{Network: network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	agent := install(t, a, a.BinaryPath())
	agent.do("start")
	a.WaitReady(t)

	all := []*manager{m, second, agent}
	ns := first.Namespace(t)
	var pods []*corev1.Pod
	var containers []int
	for _, n := range all {
		spec := harness.Pod(ns, "on-"+n.s.NodeName(), "sleep", "1000")
		spec.Spec.NodeName = n.s.NodeName()
		pod := first.Run(t, spec)
		pods, containers = append(pods, pod), append(containers, n.s.ContainerPID(t, pod, "main"))
	}
	kubernetes := m.version(t, "kubernetes")
	next := strings.TrimSuffix(kubernetes, "h") + "H"

	if os.Getenv(withFailure) != "" {
		before := []int{m.pid(), agent.pid()}
		ok, _, last := m.upgrade(t, m.spoils(t), "--cluster", "--within", "3m")
		if ok || !strings.Contains(last, "the node "+second.s.NodeName()+" is not upgraded") || !strings.Contains(last, "it ended 5 times: spoilt on purpose") {
			t.Errorf("a program that fails: %s", last)
		}
		if got := second.version(t, "kubernetes"); got != kubernetes {
			t.Errorf("the program that failed is of %s", got)
		}
		if m.pid() != before[0] || agent.pid() != before[1] {
			t.Error("nodes after the one that went back were restarted")
		}
	}

	good := m.variant(t, "next", kubernetes, next)
	if ok, said, _ := m.upgrade(t, good, "--cluster", "--within", "3m"); !ok || !strings.Contains(said, "all 3 nodes are upgraded") {
		t.Fatalf("a good program says\n%s", said)
	}
	for i, n := range all {
		if got := n.s.Node(t).Status.NodeInfo.KubeletVersion; got != next {
			t.Errorf("the node %s reports %s", n.s.NodeName(), got)
		}
		if got := n.s.ContainerPID(t, pods[i], "main"); got != containers[i] {
			t.Errorf("the container on %s is process %d, was %d", n.s.NodeName(), got, containers[i])
		}
	}
	before := []int{m.pid(), agent.pid()}
	if ok, said, _ := m.upgrade(t, good, "--cluster"); !ok {
		t.Errorf("the same upgrade again says\n%s", said)
	}
	if m.pid() != before[0] || agent.pid() != before[1] {
		t.Error("the same upgrade again restarted nodes")
	}
}
