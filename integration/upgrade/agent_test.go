package upgrade

import (
	"fmt"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// testAgent: an agent is not upgraded before its server, comes back from a broken program, and goes over to a good one.
func testAgent(t *testing.T, c *cluster) {
	m := c.agents[0]
	a := m.s
	ns := a.Namespace(t)
	spec := harness.Pod(ns, "a", "sleep", "100000")
	spec.Spec.NodeName = a.NodeName()
	pod := a.Run(t, spec)
	container := a.ContainerPID(t, pod, "main")
	kubernetes := m.version(t, "kubernetes")
	next := successor(kubernetes)

	minor := strings.Split(kubernetes, ".")[1]
	newer := m.variant(t, "newer", kubernetes, strings.Replace(kubernetes, minor, fmt.Sprint(number(t, minor)+1), 1))
	if ok, _, last := m.upgrade(t, newer); ok || !strings.Contains(last, "a node must not be newer than a server: upgrade all servers first") {
		t.Errorf("an agent before its server: %s", last)
	}
	if ok, _, last := m.upgrade(t, m.spoils(t), "--within", "3m"); ok || !endedOften(last, "runs again", "broken on purpose") {
		t.Errorf("a broken program: %s", last)
	}
	if got := m.version(t, "kubernetes"); got != kubernetes {
		t.Errorf("the program is of %s", got)
	}
	if ok, _, last := m.upgrade(t, m.variant(t, "next", kubernetes, next)); !ok {
		t.Errorf("a good program: %s", last)
	}
	if got := a.Node(t).Status.NodeInfo.KubeletVersion; got != next {
		t.Errorf("the node reports %s", got)
	}
	if got := a.ContainerPID(t, pod, "main"); got != container {
		t.Errorf("the container is process %d, was %d", got, container)
	}
	a.Kubectl(t, "delete", "pod", "-n", ns, pod.Name) // a node with a pod that has no controller cannot be drained
}
