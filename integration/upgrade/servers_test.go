package upgrade

import (
	"errors"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

// joinServer starts a second server as a service and waits until its node is Ready.
func joinServer(t *testing.T, first *harness.Server, network *sandbox.Network) *manager {
	t.Helper()
	var token string
	harness.Eventually(t, time.Minute, "a token for a server", func() error {
		r := first.RunBinary(t, "token", "create", "--usages", "server")
		if token = strings.TrimSpace(r.Stdout); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
	s := harness.New(t, harness.Options{Network: network, Args: []string{"--server=" + first.URL(), "--token=" + token}})
	m := install(t, s, s.BinaryPath())
	m.do("start")
	s.WaitReady(t)
	return m
}

// withVote waits until a server's etcd has a vote: until then the others must not be upgraded.
func withVote(t *testing.T, first *harness.Server, name string) {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, name+" to have a vote", func() error {
		r := first.RunBinary(t, "etcd", "status")
		for line := range strings.Lines(r.Stdout) {
			if strings.HasPrefix(line, name+" ") && !strings.Contains(line, "joining") {
				return nil
			}
		}
		return errors.New(r.Stdout + r.Stderr)
	})
}

// testOneOfSeveralServers: the program of one of two servers goes back alone when it fails, and etcd keeps what was
// written meanwhile; a good one is Ready with all of etcd there.
func testOneOfSeveralServers(t *testing.T, c *cluster) {
	m, second := c.servers[0], c.servers[1]
	first := m.s
	spec := harness.Pod(first.Namespace(t), "a", "sleep", "100000")
	spec.Spec.NodeName = first.NodeName()
	pod := first.Run(t, spec)
	container, other := first.ContainerPID(t, pod, "main"), second.pid()
	first.Kubectl(t, "create", "configmap", "kept")
	kubernetes := m.version(t, "kubernetes")

	ok, said, last := m.upgrade(t, m.spoils(t), "--within", "3m")
	if ok || !endedOften(last, "runs again", "spoilt on purpose") {
		t.Errorf("a program that fails: %s", last)
	}
	if !exists(first, "/run/spoilt") {
		t.Fatalf("the program has not changed the data before it failed: nothing is tested\n%s", said)
	}
	if got := m.version(t, "kubernetes"); got != kubernetes || exists(first, installed+".previous") || exists(first, harness.DataDir+"/upgrade") {
		t.Errorf("the program is of %s, and before it was of %s", got, kubernetes)
	}
	for _, s := range []*harness.Server{first, second.s} { // with what was acknowledged while the new program ran
		if names := s.Kubectl(t, "get", "configmaps", "-o", "name"); !strings.Contains(names, "configmap/kept") || !strings.Contains(names, "configmap/spoilt") {
			t.Errorf("the configmaps on %s are %q", s.NodeName(), names)
		}
	}

	next := successor(kubernetes)
	if ok, _, last := m.upgrade(t, m.variant(t, "next", kubernetes, next)); !ok {
		t.Errorf("a good program: %s", last)
	}
	if got := first.Node(t).Status.NodeInfo.KubeletVersion; got != next {
		t.Errorf("the node reports %s", got)
	}
	if got := second.pid(); got != other {
		t.Errorf("the other server is process %d, was %d", got, other)
	}
	if got := first.ContainerPID(t, pod, "main"); got != container {
		t.Errorf("the container is process %d, was %d", got, container)
	}
	second.s.Kubectl(t, "create", "configmap", "after")
}
