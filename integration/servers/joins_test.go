package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"

	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/integration/harness"
)

// away is how long a server of TestJoins may be away before it is forgotten, or another machine takes its place.
const away = 10 * time.Second

// newcomer returns a further server that is not started. Its command has a token in a file.
func (c *cluster) newcomer(t *testing.T, of *harness.Server, name string) *harness.Server {
	t.Helper()
	s := harness.New(t, harness.Options{Network: c.network, NodeName: name, NoTestImage: true, Env: []string{"KUBELITH_TEST_AWAY=" + away.String()},
		Args: []string{"--server=" + of.URL(), "--token-file=/etc/kubelith/token", noNode}})
	c.giveToken(t, s)
	return s
}

// logs waits until the log of a server has a text.
func logs(t *testing.T, s *harness.Server, timeout time.Duration, text string) {
	t.Helper()
	harness.Eventually(t, timeout, s.NodeName()+" to log "+text, func() error {
		if !strings.Contains(s.Logs(), text) {
			return errors.New("it does not")
		}
		return nil
	})
}

// TestJoins: what goes wrong when servers join, and come back, in one cluster.
func TestJoins(t *testing.T) {
	t.Parallel()
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true, NoTestImage: true, Env: []string{"KUBELITH_TEST_AWAY=" + away.String()}})
	c.servers[0].WaitAPI(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *cluster)
	}{
		{"PortTaken", testPortTaken},
		{"TwoAtOnce", func(step *testing.T, c *cluster) { testTwoAtOnce(step, t, c) }},
		{"AliveElsewhere", testAliveElsewhere},
		{"Missing", testMissing},
		{"NodeRemoved", testNodeRemoved},
		{"Orphan", testOrphan},
		{"DiskLost", testDiskLost},
		{"ServerGone", testServerGone},
		{"ReadsWithoutMajority", testReadsWithoutMajority},
	} {
		harness.Step(t, step.name, func(t *testing.T) { step.run(t, c) })
	}
}

// alone fails unless a server is as it was before any other one tried to join.
func alone(t *testing.T, s *harness.Server, pid int) {
	t.Helper()
	if s.PID() != pid || !harness.Alive(pid) {
		t.Error("its process has ended")
	}
	if m, err := servers.Load(s.Path(harness.DataDir)); m != nil || err != nil {
		t.Errorf("it has the membership %+v, %v", m, err)
	}
	if all, err := roles(t.Context(), t, s); err != nil || len(all) != 1 {
		t.Errorf("it knows %v, %v", all, err)
	}
	if err := write(t.Context(), t, s, fmt.Sprintf("alone-%d", time.Now().UnixNano())); err != nil {
		t.Error(err)
	}
}

// testPortTaken: something else has the port of the first server's etcd. The join is refused, and the server goes on
// and starts again.
func testPortTaken(t *testing.T, c *cluster) {
	first := c.servers[0]
	pid := first.PID()
	other, err := first.Listen("0.0.0.0:2380")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	s := c.newcomer(t, first, "")
	s.Launch(t)
	if code := s.WaitExit(t, 40*time.Second); code == 0 || !strings.Contains(s.Logs(), "server "+first.NodeName()+" cannot listen for other servers") ||
		!strings.Contains(s.Logs(), "stop what uses its port 2380/tcp") {
		t.Errorf("status %d", code)
	}
	alone(t, first, pid)
	first.Stop(t)
	first.Launch(t)
	first.WaitAPI(t)
	alone(t, first, first.PID())
}

// testTwoAtOnce: two machines that join at the same time do so one after the other, and the second one says so. They
// stay for the steps that follow: they end with the whole test.
func testTwoAtOnce(t, whole *testing.T, c *cluster) {
	first := c.servers[0]
	pid := first.PID()
	two := []*harness.Server{c.newcomer(whole, first, ""), c.newcomer(whole, first, "")}
	for _, s := range two {
		s.Launch(t)
	}
	for _, s := range two {
		s.WaitAPI(t)
	}
	if !strings.Contains(two[0].Logs()+two[1].Logs(), "waiting to join the cluster's servers: ") {
		t.Error("neither says that it waits for the other")
	}
	c.servers = append(c.servers, two...)
	c.leader(t)
	if first.PID() != pid {
		t.Error("the first server was started again")
	}
	// Both are of several now: their own port is checked before they start.
	if r := first.RunBinary(t, "check", noNode, "--node-name="+first.NodeName()); !strings.Contains(r.Stdout, "2380") {
		t.Errorf("check does not name the port of etcd:\n%s%s", r.Stdout, r.Stderr)
	}
}

// testAliveElsewhere: a machine does not take the place of a server that does not answer the one that it asks, but that
// the others reach.
func testAliveElsewhere(t *testing.T, c *cluster) {
	leader := c.leader(t)
	rest := c.others(leader)
	asked, cut := rest[0], rest[1]
	s := c.newcomer(t, asked, cut.NodeName())
	heal := harness.Partition(t, asked, cut)
	s.Launch(t)
	logs(t, s, 90*time.Second, "has announced its API a moment ago")
	all, err := roles(t.Context(), t, leader)
	if st, known := all[cut.NodeName()]; err != nil || !known || st.Role != "follower" || !st.Missing.IsZero() || len(all) != 3 {
		t.Errorf("the leader knows %+v, %v", all, err)
	}
	s.Kill9(t)
	heal()
	harness.Eventually(t, time.Minute, "the servers to reach each other", func() error {
		all, err := roles(t.Context(), t, asked)
		if err == nil && !all[cut.NodeName()].Missing.IsZero() {
			err = fmt.Errorf("%+v", all)
		}
		return err
	})
}

// testMissing: with one of three servers missing etcd adds none. The newcomer says which, and what to do, and keeps its
// token.
func testMissing(t *testing.T, c *cluster) {
	missing := c.servers[2]
	missing.Kill9(t)
	s := c.newcomer(t, c.servers[0], "")
	s.Launch(t)
	logs(t, s, time.Minute, "and no other can join meanwhile: start it, or remove it with kubelith etcd remove "+missing.NodeName())
	s.Kill9(t)
	secrets, err := c.servers[0].Client(t).CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{FieldSelector: "type=bootstrap.kubernetes.io/token"})
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(s.Path("/etc/kubelith/token"))
	if err != nil {
		t.Fatal(err)
	}
	unused := slices.ContainsFunc(secrets.Items, func(x corev1.Secret) bool {
		expires, err := time.Parse(time.RFC3339, string(x.Data["expiration"]))
		return strings.Contains(string(text), "_"+string(x.Data["token-id"])+"_") && err == nil && time.Until(expires) > 10*time.Minute
	})
	if !unused {
		t.Error("its token was used up")
	}
	missing.Launch(t)
	missing.WaitAPI(t)
	c.leader(t)
}

// testNodeRemoved: a Node that is deleted removes no server, and kubelith node remove does.
func testNodeRemoved(t *testing.T, c *cluster) {
	first, gone := c.servers[0], c.servers[2]
	nodes := first.Client(t).CoreV1().Nodes()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gone.NodeName(), Labels: map[string]string{"node-role.kubernetes.io/control-plane": ""}}}
	for _, err := range []error{createNode(t, first, node), nodes.Delete(t.Context(), node.Name, metav1.DeleteOptions{})} {
		if err != nil {
			t.Fatal(err)
		}
	}
	harness.Consistently(t, 6*time.Second, "the server stays one", func() error { // servers look after each other every 5 s
		all, err := roles(t.Context(), t, first)
		if err == nil && len(all) != 3 {
			err = fmt.Errorf("%v", all)
		}
		time.Sleep(time.Second)
		return err
	})
	if err := errors.Join(write(t.Context(), t, gone, "without-node"), createNode(t, first, node)); err != nil {
		t.Fatal(err)
	}
	if r := first.RunBinary(t, "node", "remove", node.Name); r.Code != 0 || !strings.Contains(r.Stdout, "server "+node.Name+" is no longer in the cluster") {
		t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if _, err := nodes.Get(t.Context(), node.Name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Node: %v", err)
	}
	if all, err := roles(t.Context(), t, first); err != nil || len(all) != 2 {
		t.Errorf("the servers are %v, %v", all, err)
	}
	if code := gone.WaitExit(t, time.Minute); code == 0 {
		t.Error("it ended with status 0")
	}
}

func createNode(t *testing.T, s *harness.Server, node *corev1.Node) error {
	_, err := s.Client(t).CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	return err
}

// testOrphan: a learner that never begins holds up others, and is removed. The one that waits is the server that was
// removed, which comes back by its command with another token.
func testOrphan(t *testing.T, c *cluster) {
	first, back := c.servers[0], c.servers[2]
	members, err := etcd.Dial(first.Path(harness.RunDir + "/etcd/etcd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer members.Close()
	harness.Eventually(t, 30*time.Second, "etcd to accept a learner", func() error { // a while after the removal
		_, err := members.MemberAddAsLearner(t.Context(), []string{"https://192.0.2.77:2380"})
		return err
	})
	c.giveToken(t, back)
	back.Launch(t)
	logs(t, back, time.Minute, "server that joins (https://192.0.2.77:2380) is joining")
	back.WaitAPI(t)
	c.leader(t)
	if !strings.Contains(first.Logs()+c.servers[1].Logs(), "removed the server at https://192.0.2.77:2380: it began to join, and has not answered for "+away.String()) {
		t.Error("no server says that it has removed the orphan")
	}
	if err := write(t.Context(), t, back, "back"); err != nil {
		t.Error(err)
	}
	if out := back.Exec(t, "ls", harness.DataDir+"/server/former"); !strings.HasPrefix(out, "db-") {
		t.Errorf("former data: %q", out)
	}
}

// testDiskLost: a server without anything of its data directory comes back by its command with another token, once it
// has been missing for a while.
func testDiskLost(t *testing.T, c *cluster) {
	lost := c.servers[2]
	lost.Kill9(t)
	lost.Exec(t, "sh", "-c", "rm -rf "+harness.DataDir+"/*")
	c.giveToken(t, lost)
	lost.Launch(t)
	logs(t, lost, time.Minute, "waiting to join the cluster's servers: server "+lost.NodeName()+" of the cluster has not answered for ")
	lost.WaitAPI(t)
	c.leader(t)
	if _, err := lost.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "back", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
}

// testServerGone: an agent that has joined at a server, and a client of the Service kubernetes on its node, go on
// without that server.
func testServerGone(t *testing.T, c *cluster) {
	gone, other := c.servers[2], c.servers[0]
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: other, URL: gone.URL(), Token: other.Token(t)}})
	agent.Launch(t)
	agent.WaitReady(t)
	service, err := other.Client(t).CoreV1().Services(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	gone.Kill9(t)
	harness.Eventually(t, time.Minute, "the Service to have the servers that live", func() error {
		slice, err := other.Client(t).DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(slice.Endpoints) != 2 {
			return fmt.Errorf("%d endpoints", len(slice.Endpoints))
		}
		for _, e := range slice.Endpoints {
			if slices.Contains(e.Addresses, gone.NodeIP) {
				return errors.New("the one that is gone")
			}
		}
		return nil
	})
	harness.Eventually(t, time.Minute, "twenty connections to the Service", func() error {
		for range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(2*time.Second))
			conn, err := agent.DialContext(ctx, "tcp", net.JoinHostPort(service.Spec.ClusterIP, "443"))
			cancel()
			if err != nil {
				return err
			}
			conn.Close()
		}
		return nil
	})
	ns := other.Namespace(t)
	other.Run(t, harness.Pod(ns, "after", "sleep", "1000")) // the agent learns of it, and reports it
	gone.Launch(t)
	gone.WaitAPI(t)
	c.leader(t)
}

// testReadsWithoutMajority: with one server of three nothing can be written, and a read has an answer of what was
// written before, or an error. The log names the missing ones. When they are back, all goes on.
func testReadsWithoutMajority(t *testing.T, c *cluster) {
	survivor, lost := c.servers[0], c.servers[1:]
	client := survivor.Client(t).CoreV1().RESTClient()
	for _, s := range lost {
		s.Kill9(t)
	}
	for _, s := range lost {
		logs(t, survivor, time.Minute, "server "+s.NodeName()+" (https://"+s.NodeIP+":2380) does not answer")
	}
	var asked sync.WaitGroup
	for what, options := range map[string]metav1.ListOptions{"from memory": {ResourceVersion: "0"}, "of the newest": {}} {
		asked.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(time.Minute))
			defer cancel()
			began := time.Now()
			var list corev1.ConfigMapList
			// client-go repeats a request ten times if the API server asks for patience, in all for minutes.
			err := client.Get().Namespace(metav1.NamespaceDefault).Resource("configmaps").VersionedParams(&options, scheme.ParameterCodec).
				MaxRetries(0).Do(ctx).Into(&list)
			if ctx.Err() != nil {
				t.Errorf("a read %s has no answer for %s", what, time.Since(began).Round(time.Second))
			}
			t.Logf("a read %s ends after %s: %v", what, time.Since(began).Round(time.Millisecond), err)
			if err == nil && !slices.ContainsFunc(list.Items, func(m corev1.ConfigMap) bool { return m.Name == "back" }) {
				t.Errorf("a read %s lacks what was written before", what)
			}
		})
	}
	asked.Go(func() {
		ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(30*time.Second))
		defer cancel()
		if err := write(ctx, t, survivor, "without-majority"); err == nil {
			t.Error("a write was acknowledged without a majority")
		}
	})
	asked.Wait()
	for _, s := range lost {
		s.Launch(t)
	}
	for _, s := range lost {
		s.WaitAPI(t)
	}
	c.leader(t)
	for i, s := range c.servers {
		harness.Eventually(t, time.Minute, "writes to go on through "+s.NodeName(), func() error {
			return write(t.Context(), t, s, fmt.Sprintf("majority-%d-%d", i, time.Now().UnixNano()))
		})
	}
}
