// Package servers has tests of clusters of several servers.
package servers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) {
	harness.Parallel(4) // each has three servers, which wait most of the time
	harness.Main(m)
}

// cluster is several servers on one network.
type cluster struct {
	network *sandbox.Network
	servers []*harness.Server
}

func start(t *testing.T, first harness.Options) *cluster {
	c := &cluster{network: &sandbox.Network{}}
	first.Network = c.network
	c.servers = append(c.servers, harness.Start(t, first))
	return c
}

// startTwo starts a server and another that joins it, both without a node.
func startTwo(t *testing.T) *cluster {
	t.Helper()
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true})
	c.servers[0].WaitAPI(t)
	c.add(t)
	return c
}

// token creates a token for a server.
func (c *cluster) token(t *testing.T) string {
	t.Helper()
	var out string
	harness.Eventually(t, time.Minute, "a token for a server", func() error {
		r := c.servers[0].RunBinary(t, "token", "create", "--usages", "server")
		if out = strings.TrimSpace(r.Stdout); r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
	return out
}

// prepare returns a further server that is not started.
func (c *cluster) prepare(t *testing.T, args ...string) *harness.Server {
	return harness.New(t, harness.Options{Network: c.network, Args: append([]string{"--server=" + c.servers[0].URL()}, args...)})
}

// add starts a further server without a node and waits for its API.
func (c *cluster) add(t *testing.T, args ...string) *harness.Server {
	s := c.prepare(t, append([]string{"--token=" + c.token(t), noNode}, args...)...)
	s.Launch(t)
	s.WaitAPI(t)
	c.servers = append(c.servers, s)
	return s
}

// join starts a further server and waits until its node is Ready.
func (c *cluster) join(t *testing.T) *harness.Server {
	s := c.prepare(t, "--token="+c.token(t))
	s.Launch(t)
	c.servers = append(c.servers, s)
	s.WaitReady(t)
	return s
}

type status struct {
	Name    string
	Role    string
	Missing time.Time
	Witness bool
}

// roles returns the role of each server as s knows it.
func roles(ctx context.Context, t *testing.T, s *harness.Server) (map[string]status, error) {
	text, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/kubelith/v1/servers").DoRaw(ctx)
	if err != nil {
		return nil, err
	}
	var view struct{ Servers []status }
	if err := json.Unmarshal(text, &view); err != nil {
		return nil, err
	}
	out := map[string]status{}
	for _, s := range view.Servers {
		out[s.Name] = s
	}
	return out, nil
}

// leader waits until all servers agree on a leader of etcd, and returns it.
func (c *cluster) leader(t *testing.T) *harness.Server {
	t.Helper()
	var name string
	harness.Eventually(t, time.Minute, "the servers to agree on a leader", func() error {
		name = ""
		for _, s := range c.servers {
			all, err := roles(t.Context(), t, s)
			if err != nil {
				return err
			}
			if len(all) != len(c.servers) {
				return fmt.Errorf("%s knows %v", s.NodeName(), all)
			}
			for n, st := range all {
				if st.Role == "joining" {
					return fmt.Errorf("%s is joining", n)
				}
				if st.Role == "leader" {
					if name != "" && name != n {
						return fmt.Errorf("leaders %s and %s", name, n)
					}
					name = n
				}
			}
		}
		if name == "" {
			return errors.New("no server leads")
		}
		return nil
	})
	i := slices.IndexFunc(c.servers, func(s *harness.Server) bool { return s.NodeName() == name })
	return c.servers[i]
}

// others returns the servers without one.
func (c *cluster) others(without *harness.Server) []*harness.Server {
	return slices.DeleteFunc(slices.Clone(c.servers), func(s *harness.Server) bool { return s == without })
}

func write(ctx context.Context, t *testing.T, s *harness.Server, name string) error {
	return writeTo(ctx, s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault), name)
}

func writeTo(ctx context.Context, maps corev1client.ConfigMapInterface, name string) error {
	_, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	return err
}

// writer writes ConfigMaps until stop, each with a timeout, and records which were acknowledged.
type writer struct {
	acknowledged []string
	failed       []error
	longest      time.Duration // without an acknowledged write
	stop         func()
}

func startWriter(t *testing.T, prefix string, patience time.Duration, to func(i int) *harness.Server) *writer {
	ctx, cancel := context.WithCancel(t.Context())
	w, done := &writer{}, make(chan struct{})
	maps := map[*harness.Server]corev1client.ConfigMapInterface{} // a new client costs more than a write
	go func() {
		defer close(done)
		last := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("%s-%d", prefix, i)
			s := to(i)
			if maps[s] == nil {
				maps[s] = s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault)
			}
			one, end := context.WithTimeout(ctx, patience)
			err := writeTo(one, maps[s], name)
			end()
			switch {
			case ctx.Err() != nil:
			case err == nil:
				w.acknowledged = append(w.acknowledged, name)
				w.longest = max(w.longest, time.Since(last))
				last = time.Now()
			default:
				w.failed = append(w.failed, err)
			}
			time.Sleep(50 * time.Millisecond)
		}
	}()
	w.stop = func() { cancel(); <-done }
	t.Cleanup(w.stop)
	return w
}

// check fails when an acknowledged write is missing on one of the servers.
func (w *writer) check(t *testing.T, servers ...*harness.Server) {
	t.Helper()
	for _, s := range servers {
		all, err := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		have := map[string]bool{}
		for _, c := range all.Items {
			have[c.Name] = true
		}
		for _, name := range w.acknowledged {
			if !have[name] {
				t.Errorf("%s: %s was acknowledged and is gone", s.NodeName(), name)
			}
		}
	}
	if len(w.acknowledged) == 0 {
		t.Errorf("no write was acknowledged: %v", w.failed)
	}
}

// TestThreeServers: one server becomes three while clients write. It runs alone: no write may fail.
func TestThreeServers(t *testing.T) {
	c := start(t, harness.Options{})
	first := c.servers[0]
	pid := first.PID()
	w := startWriter(t, "grow", 30*time.Second, func(int) *harness.Server { return first })
	for range 2 {
		began := time.Now()
		s := c.join(t)
		t.Logf("%s: Ready after %s", s.NodeName(), time.Since(began).Round(time.Millisecond))
	}
	w.stop()
	t.Logf("joins: %d writes acknowledged, %d failed, longest pause %s", len(w.acknowledged), len(w.failed), w.longest.Round(time.Millisecond))
	for _, err := range w.failed {
		t.Errorf("a write failed while servers joined: %v", err)
	}
	w.check(t, c.servers...)
	if first.PID() != pid {
		t.Error("the first server was started again")
	}
	for _, s := range c.servers {
		node := s.Node(t)
		if _, ok := node.Labels["node-role.kubernetes.io/control-plane"]; !ok {
			t.Errorf("%s has labels %v", s.NodeName(), node.Labels)
		}
	}
}

// TestLostServers: any of three servers may die, and also two of them. In the end they have a virtual address, and the
// server that carries it dies.
func TestLostServers(t *testing.T) {
	t.Parallel()
	c := start(t, harness.Options{ConfigYAML: emptyConfig})
	c.join(t)
	c.join(t)
	harness.Step(t, "LostLeader", func(t *testing.T) { testLostLeader(t, c) })
	harness.Step(t, "LostMajority", func(t *testing.T) { testLostMajority(t, c) })
	harness.Step(t, "VirtualAddress", func(t *testing.T) { testVirtualAddress(t, c) }) // make vip-faults runs this one
}

// testLostLeader: the others write and scale a Deployment without the server that leads, and it comes back.
func testLostLeader(t *testing.T, c *cluster) {
	first := c.servers[0]
	ns := first.Namespace(t)
	pod := harness.Pod(ns, "app", "sleep", "100000")
	pod.Labels = map[string]string{"app": "app"}
	first.Deploy(t, pod, 6)
	ready := func(s *harness.Server, want int32) func() error {
		return func() error {
			d, err := s.Client(t).AppsV1().Deployments(ns).Get(t.Context(), "app", metav1.GetOptions{})
			if err == nil && (d.Status.ReadyReplicas != want || d.Status.ObservedGeneration != d.Generation) {
				err = fmt.Errorf("%d of %d pods are Ready", d.Status.ReadyReplicas, want)
			}
			return err
		}
	}
	harness.Eventually(t, 2*time.Minute, "six pods on three servers", ready(c.servers[2], 6))

	// The leader of etcd, and perhaps of the controllers, dies.
	leader := c.leader(t)
	rest := c.others(leader)
	w := startWriter(t, "lost", 2*time.Second, func(i int) *harness.Server { return rest[i%2] })
	time.Sleep(time.Second)
	leader.Kill9(t)
	harness.Eventually(t, time.Minute, "writes to go on", func() error { return write(t.Context(), t, rest[0], "after") })
	harness.Eventually(t, time.Minute, "a write by the other server", func() error {
		_, err := rest[1].Client(t).AppsV1().Deployments(ns).Patch(t.Context(), "app", "application/merge-patch+json", []byte(`{"spec":{"replicas":3}}`), metav1.PatchOptions{})
		return err
	})
	harness.Eventually(t, 2*time.Minute, "the controllers of another server to scale", func() error {
		d, err := rest[1].Client(t).AppsV1().Deployments(ns).Get(t.Context(), "app", metav1.GetOptions{})
		if err == nil && d.Status.Replicas != 3 {
			err = fmt.Errorf("%d pods", d.Status.Replicas)
		}
		return err
	})
	w.stop()
	t.Logf("%s (leader) killed: %d writes acknowledged, %d failed, longest pause %s", leader.NodeName(), len(w.acknowledged), len(w.failed), w.longest.Round(time.Millisecond))
	leader.Launch(t)
	leader.WaitReady(t)
	c.leader(t)
	w.check(t, c.servers...)
	t.Logf("\n%s", first.RunBinary(t, "etcd", "status").Stdout)
}

// testLostMajority: with one server of three nothing can be written, and it stops in order; --cluster-reset makes it
// the cluster, and the others come back by themselves.
func testLostMajority(t *testing.T, c *cluster) {
	c.leader(t)
	survivor, lost := c.servers[0], c.servers[1:]
	ns := survivor.Namespace(t)
	pod := survivor.Run(t, harness.Pod(ns, "stays", "sleep", "100000"))
	pid := c.pid(t, pod)
	for _, s := range c.servers {
		harness.Eventually(t, 30*time.Second, s.NodeName()+" to have stored the addresses of all", func() error {
			known, err := servers.Load(s.Path(harness.DataDir))
			if err == nil && len(known.Servers) != 3 {
				err = fmt.Errorf("it knows %v", known.Servers)
			}
			return err
		})
	}
	for _, s := range lost {
		s.Kill9(t)
	}
	harness.Eventually(t, time.Minute, "the survivor to report which are missing", func() error {
		r := survivor.RunBinary(t, "etcd", "status")
		if r.Code != 0 || !strings.Contains(r.Stdout, "Nothing can be written: 1 of 3 servers answer") || strings.Count(r.Stdout, "no, for") != 2 {
			return fmt.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		return nil
	})
	if err := write(t.Context(), t, survivor, "without-majority"); err == nil {
		t.Error("a write was acknowledged without a majority")
	}
	if !harness.Alive(pid) {
		t.Error("the pod ended with the majority")
	}
	t.Logf("it stopped within %s", survivor.Stop(t).Round(time.Millisecond))
	args := append([]string{"server"}, "--cluster-reset", "--node-name="+survivor.NodeName())
	for range 2 { // it can be repeated
		if r := survivor.RunBinary(t, args...); r.Code != 0 || !strings.Contains(r.Stdout, "only one of its cluster") {
			t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
	}
	survivor.Launch(t)
	survivor.WaitReady(t)
	if err := write(t.Context(), t, survivor, "after-reset"); err != nil {
		t.Error(err)
	}
	for _, s := range lost {
		// Its etcd learns that it was removed, and exits; as a service manager would, the test starts it again.
		s.Launch(t)
		if code := s.WaitExit(t, time.Minute); code == 0 {
			t.Errorf("%s: status 0", s.NodeName())
		}
		if !strings.Contains(s.Logs(), "this server was removed from the cluster") {
			t.Errorf("%s did not log why it ended", s.NodeName())
		}
		s.Launch(t)
		s.WaitReady(t)
		if out := s.Exec(t, "ls", harness.DataDir+"/server/former"); !strings.HasPrefix(out, "db-") {
			t.Errorf("%s: former data: %q", s.NodeName(), out)
		}
	}
	c.leader(t)
	if !harness.Alive(pid) {
		t.Error("the pod was ended")
	}
}

func (c *cluster) pid(t *testing.T, pod *corev1.Pod) int {
	i := slices.IndexFunc(c.servers, func(s *harness.Server) bool { return s.NodeName() == pod.Spec.NodeName })
	return c.servers[i].ContainerPID(t, pod, pod.Spec.Containers[0].Name)
}

// TestLeaveAndMove: a server that is removed stays out until it has a token, also with its old data; one that lost its
// disk comes back by the command with which it joined; and one may move to another address. A server that joins again
// takes the settings that the cluster has now.
func TestLeaveAndMove(t *testing.T) {
	t.Parallel()
	c := start(t, harness.Options{Args: []string{noNode, "--cluster-domain=moved.example"}, NoWait: true})
	c.servers[0].WaitAPI(t)
	t.Run("bad input", func(t *testing.T) { refusedJoins(t, c) })
	t.Run("closed ports", func(t *testing.T) { closedPorts(t, c) })
	second := c.prepare(t, "--token-file="+tokenFile, noNode)
	disk(t, second)
	once := c.token(t)
	put(t, second, tokenFile, once)
	second.Launch(t)
	second.WaitAPI(t)
	c.servers = append(c.servers, second)
	c.leader(t)
	late := c.prepare(t, "--token="+once, noNode)
	late.Launch(t)
	if code := late.WaitExit(t, time.Minute); code == 0 || !strings.Contains(late.Logs(), "is valid for one machine only and another one has used it") {
		t.Errorf("a machine with the token of another ended with status %d:\n%s", code, late.Logs())
	}
	if r := second.RunBinary(t, "server", "leave"); r.Code != 0 || !strings.Contains(r.Stdout, "has left the cluster") {
		t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	second.WaitExit(t, time.Minute)
	if err := write(t.Context(), t, c.servers[0], "alone-again"); err != nil {
		t.Error(err)
	}
	second.Launch(t)
	second.WaitExit(t, time.Minute)
	if !strings.Contains(second.Logs(), "was removed from the cluster: start it with --server and --token-file") {
		t.Error("a server that has left does not log how to rejoin")
	}
	// The cluster gets another type of pod network meanwhile.
	first := c.servers[0]
	first.Stop(t)
	for _, s := range c.servers {
		put(t, s, "/etc/kubelith/config.yaml", "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\nnetwork: host-gw\n")
	}
	first.Launch(t)
	first.WaitAPI(t)
	put(t, second, tokenFile, c.token(t))
	second.Launch(t)
	second.WaitAPI(t)
	c.leader(t)
	second.Exec(t, "sh", "-c", "ls "+harness.DataDir+"/server/db/former/db-*/member") // a mount point cannot be moved
	c.add(t)
	c.leader(t)
	third := c.servers[2]
	for i, left := range []string{"nothing", "what an interrupted join leaves: etcd's database before it has asked the others"} {
		third.Kill9(t)
		third.Exec(t, "rm", "-rf", harness.DataDir+"/server/db")
		if i > 0 {
			emptyDatabase(t, third.Path(harness.DataDir+"/server/db/member/snap/db"))
		}
		third.Launch(t)
		third.WaitAPI(t)
		harness.Eventually(t, time.Minute, "the server to be back with "+left, func() error { return write(t.Context(), t, third, fmt.Sprint("back-", i)) })
		for _, s := range c.servers { // of one cluster
			if _, err := s.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), fmt.Sprint("back-", i), metav1.GetOptions{}); err != nil {
				t.Errorf("%s, with %s: %v", s.NodeName(), left, err)
			}
		}
		c.leader(t)
	}
	harness.Step(t, "Moved", func(t *testing.T) { testMoved(t, c) })
}

// tokenFile is in a server's sandbox.
const tokenFile = "/etc/kubelith/join-token"

// put writes a file in a server's sandbox.
func put(t *testing.T, s *harness.Server, path, text string) {
	t.Helper()
	s.Exec(t, "sh", "-c", `umask 077; mkdir -p "${1%/*}" && printf %s "$2" >"$1"`, "sh", path, text)
}

func emptyDatabase(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// refusedJoins: each is one line, and leaves the cluster as it was.
func refusedJoins(t *testing.T, c *cluster) {
	first := c.servers[0]
	c.token(t) // from now on there are tokens
	agent := first.Token(t)
	for name, tc := range map[string]struct {
		args  []string
		newer int // minor releases than the cluster
		want  string
	}{
		"a token for agents":         {[]string{"--token=" + agent}, 0, "use a token from kubelith token create --usages server"},
		"the name of the server":     {[]string{"--token=" + c.token(t), "--node-name=" + first.NodeName()}, 0, "a server " + first.NodeName() + " is in the cluster, and runs"},
		"other networks":             {[]string{"--token=" + c.token(t), "--cluster-cidr=10.99.0.0/16"}, 0, "10.99.0.0/16 is not the setting of the cluster"},
		"a name that is none":        {[]string{"--token=" + c.token(t), "--node-name=A_B"}, 0, "node"},
		"no token":                   {nil, 0, "a token is needed to join"},
		"a token of another cluster": {[]string{"--token=kl1_" + strings.Repeat("0", 64) + "_aaaaaa_aaaaaaaaaaaaaaaa"}, 0, "the token is for another cluster"},
		"a newer release":            {[]string{"--token=" + c.token(t)}, 1, "install the cluster's release here, and upgrade all servers later"},
	} {
		t.Run(name, func(t *testing.T) {
			s := c.prepare(t, append(tc.args, noNode)...)
			if tc.newer != 0 {
				s.UseProgram(first.OtherRelease(t, tc.newer))
			}
			s.Launch(t)
			if code := s.WaitExit(t, 40*time.Second); code == 0 {
				t.Error("it ended with status 0")
			}
			if !strings.Contains(s.Logs(), tc.want) {
				t.Errorf("no %q in:\n%s", tc.want, s.Logs())
			}
			if r := s.TryExec(t, "ls", harness.DataDir); r.Code == 0 && strings.TrimSpace(r.Stdout) != "" && strings.TrimSpace(r.Stdout) != "agent" {
				t.Errorf("it left %s", r.Stdout)
			}
			if all, err := roles(t.Context(), t, first); err != nil || len(all) != 1 {
				t.Errorf("the cluster has %v, %v", all, err)
			}
		})
	}
}

// closedPorts: a machine that the servers cannot reach, or that cannot reach them, logs which port to open, and its
// token stays valid.
func closedPorts(t *testing.T, c *cluster) {
	first, text := c.servers[0], c.token(t)
	pid := first.PID()
	for name, tc := range map[string]struct {
		chain string
		want  string
	}{
		"of this machine": {"output", "cannot reach this machine at"},
		"of the servers":  {"input", "this machine cannot reach the etcd of server " + first.NodeName()},
	} {
		t.Run(name, func(t *testing.T) {
			first.Exec(t, "nft", fmt.Sprintf("add table inet klt_closed\nadd chain inet klt_closed c { type filter hook %s priority 0; }\nadd rule inet klt_closed c ip daddr != 127.0.0.1 tcp dport 2380 drop", tc.chain))
			defer first.Exec(t, "nft", "delete", "table", "inet", "klt_closed")
			s := c.prepare(t, "--token="+text, noNode)
			s.Launch(t)
			if code := s.WaitExit(t, 40*time.Second); code == 0 {
				t.Error("it ended with status 0")
			}
			if !strings.Contains(s.Logs(), tc.want) || !strings.Contains(s.Logs(), "open its port 2380/tcp for the servers") {
				t.Errorf("no %q in:\n%s", tc.want, s.Logs())
			}
			alone(t, first, pid)
		})
	}
}

// noNode are the components of a node: without them a server starts faster.
const noNode = "--disable=kubelet,containerd,proxy,dns"

// three starts three servers without nodes.
func three(t *testing.T) *cluster {
	c := start(t, harness.Options{Args: []string{noNode}, NoWait: true})
	c.servers[0].WaitAPI(t)
	for range 2 {
		c.add(t)
	}
	return c
}

// TestCorruptAndPartition: of three servers, one has other data than the others; later the leader is cut off.
func TestCorruptAndPartition(t *testing.T) {
	t.Parallel()
	c := three(t)
	// The first: at its start, a server compares its data with that of others only if they were compacted to the same
	// revision. They are compacted every five minutes.
	harness.Step(t, "Corrupt", func(t *testing.T) { testCorrupt(t, c) })
	harness.Step(t, "Partition", func(t *testing.T) { testPartition(t, c) })
	harness.Step(t, "AgentOfMinority", func(t *testing.T) { testAgentOfMinority(t, c) })
}

// testPartition: a leader that is cut off for 70 s is not started again, and neither loses writes nor accepts any.
func testPartition(t *testing.T, c *cluster) {
	leader := c.leader(t)
	pid := leader.PID()
	rest := c.others(leader)
	w := startWriter(t, "majority", 2*time.Second, func(i int) *harness.Server { return rest[i%2] })
	h := record(t, 100*time.Millisecond, c.servers...)
	time.Sleep(time.Second)
	leader.Isolate(t)
	cut := time.Now()
	harness.Eventually(t, time.Minute, "the majority to write", func() error { return write(t.Context(), t, rest[0], "cut-off") })
	t.Logf("the majority wrote again %s after the leader was cut off", time.Since(cut).Round(time.Millisecond))
	for time.Since(cut) < 70*time.Second {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if err := write(ctx, t, leader, fmt.Sprintf("minority-%d", time.Since(cut))); err == nil {
			t.Fatal("a server without a majority acknowledged a write")
		}
		cancel()
		time.Sleep(time.Second)
	}
	leader.Rejoin(t)
	healed := time.Now()
	harness.Eventually(t, time.Minute, "the server to write again", func() error { // one that timed out may be written all the same
		return write(t.Context(), t, leader, fmt.Sprintf("healed-%d", time.Since(cut)))
	})
	t.Logf("it wrote again %s after the partition", time.Since(healed).Round(time.Millisecond))
	w.stop()
	c.leader(t)
	if leader.PID() != pid || !harness.Alive(pid) {
		t.Error("the process was ended")
	}
	w.check(t, c.servers...)
	h.check(t)
	t.Logf("%d writes acknowledged, %d failed, longest pause %s", len(w.acknowledged), len(w.failed), w.longest.Round(time.Millisecond))
}

// testAgentOfMinority: a server that reaches its agent, and no other server, answers and cannot write: the agent leaves
// it for another one.
func testAgentOfMinority(t *testing.T, c *cluster) {
	alone, other := c.servers[0], c.servers[1]
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: other, URL: alone.URL(), Token: other.Token(t)}})
	agent.Launch(t)
	agent.WaitReady(t)
	for _, s := range c.others(alone) {
		defer harness.Partition(t, alone, s)()
	}
	cut := time.Now()
	late := cut.Add(10 * time.Second) // what was under way at the cut has ended
	harness.Eventually(t, 2*time.Minute, "the agent's Lease to be renewed at another server", func() error {
		lease, err := other.Client(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), agent.NodeName(), metav1.GetOptions{})
		if err == nil && (lease.Spec.RenewTime == nil || lease.Spec.RenewTime.Time.Before(late)) {
			err = fmt.Errorf("it was renewed at %v", lease.Spec.RenewTime)
		}
		return err
	})
	logs(t, agent, time.Second, "answers, but cannot serve: turning to ")
	t.Logf("the agent's Lease was renewed %s after its server was cut off from the others", time.Since(cut).Round(time.Second))
}

// testMoved: a server that comes back with another address is followed by the others, and has the settings of the
// cluster as before.
func testMoved(t *testing.T, c *cluster) {
	another := c.prepare(t, "--token="+c.token(t), noNode, "--config=/etc/kubelith/moved.yaml")
	put := func(text string) {
		if err := os.MkdirAll(filepath.Dir(another.Path("/etc/kubelith/moved.yaml")), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(another.Path("/etc/kubelith/moved.yaml"), []byte("apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("")
	another.Launch(t)
	another.WaitAPI(t)
	another.Stop(t)
	other := another.NodeIP[:strings.LastIndex(another.NodeIP, ".")] + ".99"
	another.AddAddress(t, other)
	put("nodeIP: [" + other + "]\n")
	another.NodeIP = other
	another.Launch(t)
	another.WaitAPI(t)
	harness.Eventually(t, time.Minute, "the others to know the new address", func() error {
		r := c.servers[0].RunBinary(t, "etcd", "status")
		if r.Code != 0 || !strings.Contains(r.Stdout, "https://"+other+":2380") {
			return fmt.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
		}
		return nil
	})
	another.Kubectl(t, "create", "configmap", "moved")
	if r := another.RunBinary(t, "check", noNode); strings.Contains(r.Stdout+r.Stderr, "cluster's domain") {
		t.Errorf("check does not know the settings of the cluster:\n%s%s", r.Stdout, r.Stderr)
	}
}

// testCorrupt: a server whose data is not that of the others does not start, and one that etcd finds while it runs is
// named. Each has its way out.
func testCorrupt(t *testing.T, c *cluster) {
	c.leader(t)
	if err := write(t.Context(), t, c.servers[0], "before"); err != nil {
		t.Fatal(err)
	}
	bad := c.servers[2]
	bad.Stop(t)
	falsify(t, bad.Path(harness.DataDir+"/server/db/member/snap/db"))
	bad.Launch(t)
	if code := bad.WaitExit(t, time.Minute); code == 0 {
		t.Error("it ended with status 0")
	}
	if !strings.Contains(bad.Logs(), "the data differs from that of the other servers: move its member directory away and start again") {
		t.Error("it does not log the reason")
	}
	bad.Exec(t, "mv", harness.DataDir+"/server/db/member", harness.DataDir+"/server/member-of-before")
	bad.Launch(t)
	bad.WaitAPI(t)
	c.leader(t)
	if _, err := bad.Client(t).CoreV1().ConfigMaps(metav1.NamespaceDefault).Get(t.Context(), "before", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	// As etcd's leader does when the hashes of a compaction differ.
	first := c.servers[0]
	members, err := etcd.Dial(first.Path(harness.RunDir + "/etcd/etcd.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer members.Close()
	list, err := members.MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Members, func(m *etcdserverpb.Member) bool { return m.Name == bad.NodeName() })
	if _, err := etcdserverpb.NewMaintenanceClient(members.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: list.Members[i].ID, Alarm: etcdserverpb.AlarmType_CORRUPT,
	}); err != nil {
		t.Fatal(err)
	}
	if err := write(t.Context(), t, first, "corrupt"); err == nil {
		t.Error("a write was acknowledged")
	}
	harness.Eventually(t, 2*time.Minute, "the servers to report whose data differs", func() error {
		if !strings.Contains(first.Logs(), "the etcd data of server "+bad.NodeName()+" differs from that of the others") {
			return errors.New("nothing in the log")
		}
		return nil
	})
	if r := first.RunBinary(t, "etcd", "disarm"); r.Code != 0 {
		t.Error(r.Stderr)
	}
	for _, s := range c.servers {
		harness.Eventually(t, time.Minute, "writes to go on through "+s.NodeName(), func() error {
			return write(t.Context(), t, s, fmt.Sprintf("whole-%d", time.Now().UnixNano()))
		})
	}
}

// falsify changes a value in the database of an etcd that does not run.
func falsify(t *testing.T, path string) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		keys := tx.Bucket([]byte("key"))
		key, value := keys.Cursor().First()
		return keys.Put(slices.Clone(key), append(slices.Clone(value[:len(value)-1]), value[len(value)-1]^1))
	})
	if err != nil {
		t.Fatal(err)
	}
}
