package upgrade

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

// TestCluster upgrades nodes of one cluster. A step goes on with the versions that the ones before it have installed,
// and runs without them too: -run TestCluster/agent.
func TestCluster(t *testing.T) {
	c := startServers(t)
	harness.Step(t, "one of several servers", func(t *testing.T) { testOneOfSeveralServers(t, c) })
	c.joinAgents(t)
	harness.Step(t, "agent", func(t *testing.T) { testAgent(t, c) })
	harness.Step(t, "all nodes", func(t *testing.T) { testAllNodes(t, c) })
}

// cluster is two servers and two agents, each run as a service.
type cluster struct {
	network         *sandbox.Network
	servers, agents []*manager
}

// startServers starts both servers.
func startServers(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{network: &sandbox.Network{}}
	first := harness.New(t, harness.Options{Network: c.network})
	m := install(t, first, first.BinaryPath())
	m.do("start")
	first.WaitReady(t)
	c.servers = []*manager{m, joinServer(t, first, c.network)}
	withVote(t, first, c.servers[1].s.NodeName())
	return c
}

// joinAgents starts both agents, which join the first server.
func (c *cluster) joinAgents(t *testing.T) {
	t.Helper()
	first := c.servers[0].s
	for range 2 {
		a := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
		agent := install(t, a, a.BinaryPath())
		agent.do("start")
		c.agents = append(c.agents, agent)
	}
	for _, a := range c.agents {
		a.s.WaitReady(t)
	}
}

// withFailure makes testAllNodes begin with a program that fails, and with a budget that allows no eviction: make
// upgrade-cluster-test sets it.
const withFailure = "KUBELITH_UPGRADE_CLUSTER_FAILURE"

// testAllNodes: a good program reaches all nodes, the agents together and drained, and no container of those that a
// drain leaves is restarted; run again, it changes nothing. With withFailure, a program that fails stops at the first
// node, and the others are untouched; a budget that never allows an eviction stops at its agent, and the upgrade goes
// on when it is gone.
func testAllNodes(t *testing.T, c *cluster) {
	m, second, agents := c.servers[0], c.servers[1], c.agents
	first, all := m.s, slices.Concat(c.servers, c.agents)

	ns := first.Namespace(t)
	stay := onEach(t, first, ns)
	var containers []int
	for _, n := range all {
		containers = append(containers, n.s.ContainerPID(t, stay(n.s.NodeName()), "main"))
	}
	kubernetes := m.version(t, "kubernetes")
	next := successor(kubernetes)
	pids := func() (out []int) {
		for _, n := range all {
			out = append(out, n.pid())
		}
		return out
	}

	if os.Getenv(withFailure) != "" {
		first.Kubectl(t, "delete", "configmap", "spoilt", "--ignore-not-found") // which the program creates
		before, was := pids(), second.version(t, "kubernetes")
		ok, _, last := m.upgrade(t, m.spoils(t), "--cluster", "--within", "3m")
		if ok || !strings.Contains(last, "the node "+second.s.NodeName()+" is not upgraded") || !endedOften(last, "runs again", "spoilt on purpose") {
			t.Errorf("a program that fails: %s", last)
		}
		if got := second.version(t, "kubernetes"); got != was {
			t.Errorf("the program that failed is of %s", got)
		}
		if after := pids(); after[0] != before[0] || !slices.Equal(after[2:], before[2:]) {
			t.Error("nodes after the one that went back were restarted")
		}
	}

	// On the agents: four pods of which one may be away, and with withFailure one that may not be.
	cordon := func(verb string, some []*manager) {
		for _, n := range some {
			first.Kubectl(t, verb, n.s.NodeName())
		}
	}
	cordon("cordon", all[:2])
	deploy(t, first, ns, "web", 4, 3)
	if os.Getenv(withFailure) != "" {
		cordon("cordon", agents[1:])
		deploy(t, first, ns, "stuck", 1, 1)
		cordon("uncordon", agents[1:])
	}
	cordon("uncordon", all[:2])
	cordon("cordon", agents[1:]) // an administrator's, which stays

	good := m.variant(t, "next", kubernetes, next)
	if os.Getenv(withFailure) != "" {
		ok, said, last := m.upgrade(t, good, "--cluster", "--within", "1m", "--batch", "2", "--drain")
		if want := fmt.Sprintf("the node %s is not upgraded, and the nodes after it are left as they are: it cannot be drained within 1m0s: the PodDisruptionBudget %s/stuck does not allow the eviction of pod stuck-", agents[0].s.NodeName(), ns); ok || !strings.Contains(last, want) {
			t.Errorf("a budget that allows no eviction: %s\nwant %s", last, want)
		}
		if !agents[0].s.Node(t).Spec.Unschedulable || !strings.Contains(said, agents[1].s.NodeName()+": Ready with the new program") {
			t.Error("the agent that is not drained is not cordoned, or the other one of its batch was not upgraded")
		}
		first.Kubectl(t, "delete", "poddisruptionbudget", "-n", ns, "stuck")
	}
	before := pids()
	first.KubectlInput(t, fmt.Sprintf("{apiVersion: coordination.k8s.io/v1, kind: Lease, metadata: {name: %s, namespace: kube-system}, spec: {holderIdentity: %s, leaseDurationSeconds: 600, renewTime: %q}}",
		names.UpgradeLease, second.s.NodeName(), time.Now().UTC().Format(metav1.RFC3339Micro)), "create", "-f", "-")
	if ok, _, last := m.upgrade(t, good, "--cluster"); ok || !strings.Contains(last, "another upgrade of the cluster is under way, on "+second.s.NodeName()) || !slices.Equal(pids(), before) {
		t.Errorf("while another server upgrades the cluster: %s", last)
	}
	first.Kubectl(t, "delete", "lease", "-n", metav1.NamespaceSystem, names.UpgradeLease)
	ok, said, _ := m.upgrade(t, good, "--cluster", "--within", "3m", "--batch", "2", "--drain")
	if !ok || !strings.Contains(said, "all 4 nodes are upgraded") {
		t.Fatalf("upgrade to a good program printed\n%s", said)
	}
	if os.Getenv(withFailure) == "" {
		if gone := strings.Count(said, ": pod "+ns+"/web-"); gone != 4 { // none went from one agent to the other
			t.Errorf("%d pods have moved, want 4", gone)
		}
	} else if strings.Contains(said, agents[1].s.NodeName()+": draining") {
		t.Error("an agent that had the program was drained again")
	}
	for i, n := range all {
		node := n.s.Node(t)
		if got := node.Status.NodeInfo.KubeletVersion; got != next {
			t.Errorf("the node %s reports %s", node.Name, got)
		}
		if got := n.s.ContainerPID(t, stay(node.Name), "main"); got != containers[i] {
			t.Errorf("the container on %s is process %d, was %d", node.Name, got, containers[i])
		}
		if want := n == agents[1]; node.Spec.Unschedulable != want {
			t.Errorf("the node %s is cordoned: %v, want %v", node.Name, node.Spec.Unschedulable, want)
		}
	}
	first.WaitRollout(t, ns, "deployment/web")
	before = pids()
	if ok, said, _ := m.upgrade(t, good, "--cluster", "--batch", "2", "--drain"); !ok || strings.Contains(said, "draining") {
		t.Errorf("the same upgrade again printed\n%s", said)
	}
	if after := pids(); !slices.Equal(after, before) {
		t.Errorf("the same upgrade again restarted nodes: processes %v, were %v", after, before)
	}
}

// onEach runs a pod of a DaemonSet on each node, and returns how to find it.
func onEach(t *testing.T, s *harness.Server, ns string) func(node string) *corev1.Pod {
	t.Helper()
	pod := harness.Pod(ns, "each", "sleep", "100000")
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	_, err := s.Client(t).AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.WaitRollout(t, ns, "daemonset/"+pod.Name)
	return func(node string) *corev1.Pod {
		list, err := s.Client(t).CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "app=each", FieldSelector: "spec.nodeName=" + node})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("pods on %s: %v, %v", node, list, err)
		}
		return &list.Items[0]
	}
}

// deploy runs pods of a Deployment, of which some have to be available when others are evicted.
func deploy(t *testing.T, s *harness.Server, ns, name string, replicas int32, available int) {
	t.Helper()
	pod := harness.Pod(ns, name, "sleep", "100000")
	s.Deploy(t, pod, replicas)
	least := intstr.FromInt(available)
	_, err := s.Client(t).PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: pod.Labels}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.WaitRollout(t, ns, "deployment/"+name)
}
