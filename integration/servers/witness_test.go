package servers

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestWitness: two servers and a witness survive the loss of each of them, and the witness has no key but that of
// etcd's members. Then the servers have tunnels to an agent.
func TestWitness(t *testing.T) {
	c := startTwo(t)
	first := c.servers[0]

	w := c.prepare(t, "--witness", "--token-file=/etc/kubelith/token")
	if r := w.RunBinary(t, "server", "--witness"); r.Code == 0 || !strings.Contains(r.Stderr, "a witness joins the cluster of others: add --server") {
		t.Errorf("without --server: %d %s", r.Code, r.Stderr)
	}
	c.giveToken(t, w)
	began := time.Now()
	w.Launch(t)
	c.witnessVotes(t, w)
	t.Logf("the witness has a vote after %s", time.Since(began).Round(time.Millisecond))
	for _, s := range c.servers {
		if out := s.RunBinary(t, "etcd", "status").Stdout; !strings.Contains(out, "(witness)") || !strings.Contains(out, "The cluster has 2 servers and a witness, and can lose 1 of them.") {
			t.Errorf("etcd status of %s:\n%s", s.NodeName(), out)
		}
	}
	if r := w.RunBinary(t, "check", "--witness", "--node-name="+w.NodeName()); r.Code != 0 || !strings.Contains(r.Stdout, "2380") || strings.Contains(r.Stdout, "cgroup") {
		t.Errorf("check --witness: %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	other := c.prepare(t, "--witness", "--token="+c.token(t))
	other.Launch(t)
	if code := other.WaitExit(t, 40*time.Second); code == 0 || !strings.Contains(other.Logs(), "the cluster has the witness "+w.NodeName()+", and one is enough") {
		t.Errorf("a second witness: %d\n%s", code, other.Logs())
	}
	c.onlyEtcd(t, w)
	c.noKeys(t, w)
	logMemory(t, w, "after the join")

	// A server that leads dies: the other one goes on, and leads.
	leader := c.leadingServer(t)
	rest := c.others(leader)[0]
	load := startWriter(t, "lost", 2*time.Second, func(int) *harness.Server { return rest })
	time.Sleep(time.Second)
	leader.Kill9(t)
	harness.Eventually(t, 20*time.Second, "writes through the other server", func() error { return write(t.Context(), t, rest, "after-the-leader") })
	harness.Eventually(t, 20*time.Second, "the other server to lead", func() error { return leads(t, rest, rest) })
	load.stop()
	t.Logf("%s (leader) killed: %d writes acknowledged, %d failed, longest pause %s", leader.NodeName(), len(load.acknowledged), len(load.failed), load.longest.Round(time.Millisecond))
	load.check(t, rest)
	leader.Launch(t)
	leader.WaitAPI(t)
	load.check(t, leader)

	// The witness dies: no server waits for it. It catches up, and its vote is needed at once.
	c.witnessVotes(t, w)
	load = startWriter(t, "alone", 30*time.Second, func(i int) *harness.Server { return c.servers[i%2] })
	time.Sleep(time.Second)
	w.Kill9(t)
	time.Sleep(3 * time.Second)
	load.stop()
	t.Logf("witness killed: %d writes acknowledged, %d failed, longest pause %s", len(load.acknowledged), len(load.failed), load.longest.Round(time.Millisecond))
	for _, err := range load.failed {
		t.Errorf("a write failed without the witness: %v", err)
	}
	w.Launch(t)
	c.witnessVotes(t, w)
	leader = c.leadingServer(t)
	rest = c.others(leader)[0]
	leader.Stop(t)
	if err := leads(t, rest, rest); err != nil { // not the witness
		t.Errorf("after the leader has ended in order: %v", err)
	}
	harness.Eventually(t, 20*time.Second, "writes with the witness' vote", func() error { return write(t.Context(), t, rest, "with-the-witness") })
	load.check(t, rest)
	leader.Launch(t)
	leader.WaitAPI(t)

	harness.Eventually(t, 90*time.Second, "the witness to do with 100 MB", func() error {
		if kib := resident(t, w); kib*1024 > 100e6 {
			return fmt.Errorf("%d KiB are resident", kib)
		}
		return nil
	})
	logMemory(t, w, "after writes")

	// Refusals, and how it leaves and rejoins. From here on other tests may run beside it: no failed write is an error.
	t.Parallel()
	w.Stop(t)
	for want, args := range map[string][]string{
		"is a witness': start it with --witness":           {"server"},
		"a witness cannot be the only member of a cluster": {"server", "--witness", "--cluster-reset"},
	} {
		if r := w.RunBinary(t, append(args, "--node-name="+w.NodeName())...); r.Code == 0 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%v: %d %s", args, r.Code, r.Stderr)
		}
	}
	w.Launch(t)
	c.witnessVotes(t, w)
	if r := first.RunBinary(t, "etcd", "remove", w.NodeName()); r.Code != 0 || !strings.Contains(r.Stdout, "the witness "+w.NodeName()+" is no longer in the cluster") {
		t.Fatalf("etcd remove: %d %s%s", r.Code, r.Stdout, r.Stderr)
	}
	if code := w.WaitExit(t, 40*time.Second); code == 0 {
		t.Error("it ended with status 0")
	}
	if err := os.Remove(w.Path("/etc/kubelith/token")); err != nil {
		t.Fatal(err)
	}
	w.Launch(t)
	if code := w.WaitExit(t, 40*time.Second); code == 0 || !strings.Contains(w.Logs(), "this witness has to join again (it was removed from the cluster)") {
		t.Errorf("a removed witness: %d", code)
	}
	c.giveToken(t, w)
	w.Launch(t)
	harness.Step(t, "Tunnels", func(t *testing.T) { testTunnels(t, c, w) })
}

func logMemory(t *testing.T, w *harness.Server, when string) {
	t.Helper()
	t.Logf("witness %s: %.0f MB resident, of which %.0f MB anonymous; the rest are pages of the program and of etcd's database", when, float64(resident(t, w))*1024/1e6, harness.AnonymousMB(t, w.PID()))
}

// resident returns KiB: all pages in memory that the process has mapped.
func resident(t *testing.T, s *harness.Server) (kib int) {
	t.Helper()
	if _, err := fmt.Sscan(harness.ProcStatus(t, s.PID(), "VmRSS"), &kib); err != nil {
		t.Fatal(err)
	}
	return kib
}

func (c *cluster) giveToken(t *testing.T, w *harness.Server) {
	t.Helper()
	path := w.Path("/etc/kubelith/token")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(c.token(t)), 0o600)); err != nil {
		t.Fatal(err)
	}
}

// witnessVotes waits until the witness has a vote and answers all servers.
func (c *cluster) witnessVotes(t *testing.T, w *harness.Server) {
	t.Helper()
	harness.Eventually(t, time.Minute, "the witness to have a vote", func() error {
		select {
		case <-w.Exited():
			return harness.Permanent(errors.New("it has ended"))
		default:
		}
		for _, s := range c.servers {
			all, err := roles(t.Context(), t, s)
			if err != nil {
				return err
			}
			if st := all[w.NodeName()]; !st.Witness || st.Role == "joining" || !st.Missing.IsZero() {
				return fmt.Errorf("%s knows %+v", s.NodeName(), all)
			}
		}
		return nil
	})
}

// leads returns nil if want leads, as s knows it.
func leads(t *testing.T, s, want *harness.Server) error {
	all, err := roles(t.Context(), t, s)
	if err == nil && all[want.NodeName()].Role != "leader" {
		err = fmt.Errorf("%s does not lead: %+v", want.NodeName(), all)
	}
	return err
}

// leadingServer waits until a server leads, not the witness, and returns it.
func (c *cluster) leadingServer(t *testing.T) (leader *harness.Server) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "a server to lead", func() (err error) {
		for _, s := range c.servers {
			leader = s
			if err = leads(t, c.servers[0], s); err == nil {
				return nil
			}
		}
		return err
	})
	return leader
}

// onlyEtcd: a witness listens for the servers' etcd, is no node and runs nothing else.
func (c *cluster) onlyEtcd(t *testing.T, w *harness.Server) {
	t.Helper()
	if _, err := c.servers[0].Client(t).CoreV1().Nodes().Get(t.Context(), w.NodeName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Node of the witness: %v", err)
	}
	slice, err := c.servers[0].Client(t).DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil || len(slice.Endpoints) == 0 {
		t.Fatal(slice, err)
	}
	for _, e := range slice.Endpoints {
		if strings.Join(e.Addresses, "") == w.NodeIP {
			t.Error("the Service kubernetes has the witness as an endpoint")
		}
	}
	listening := 0
	for line := range strings.Lines(w.Exec(t, "cat", "/proc/net/tcp", "/proc/net/tcp6")) {
		fields := strings.Fields(line)
		if len(fields) < 4 || fields[3] != "0A" {
			continue
		}
		listening++
		if !strings.HasSuffix(fields[1], ":094C") { // 2380
			t.Errorf("it listens at %s", fields[1])
		}
	}
	if listening != 1 {
		t.Errorf("it listens on %d ports", listening)
	}
	for _, path := range []string{harness.DataDir + "/bin", harness.DataDir + "/agent/containerd", harness.AdminKubeconfig, harness.DataDir + "/server/token", harness.DataDir + "/server/cred"} {
		if _, err := os.Lstat(w.Path(path)); err == nil {
			t.Errorf("it has %s", path)
		}
	}
}

// noKeys: no file of the witness has a key of the cluster or the text of a Secret; it has what is not secret.
func (c *cluster) noKeys(t *testing.T, w *harness.Server) {
	t.Helper()
	cs := c.servers[0].Client(t).CoreV1()
	if _, err := cs.Secrets(metav1.NamespaceDefault).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"k": "text-of-a-secret"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.ConfigMaps(metav1.NamespaceDefault).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Data: map[string]string{"k": "text-of-a-configmap"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kept := map[string][]byte{"a Secret": []byte("text-of-a-secret")}
	for _, name := range []string{"tls/cluster-ca.key", "tls/kubelet-ca.key", "tls/front-proxy-ca.key", "tls/service-account.key", "tls/admin.key", "cred/encryption.yaml"} {
		data, err := os.ReadFile(c.servers[0].Path(filepath.Join(harness.DataDir, "server", name)))
		if err != nil {
			t.Fatal(err)
		}
		if kept[name] = bytes.Split(data, []byte("\n"))[1]; strings.HasSuffix(name, ".yaml") {
			_, after, found := bytes.Cut(data, []byte("secret: "))
			if !found {
				t.Fatalf("%s has no key", name)
			}
			kept[name], _, _ = bytes.Cut(after, []byte("\n"))
		}
		if len(kept[name]) < 32 {
			t.Fatalf("the key of %s is %q", name, kept[name])
		}
	}
	known := func() (found bool) {
		err := filepath.WalkDir(w.Path(harness.DataDir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			data, err := os.ReadFile(path)
			found = found || bytes.Contains(data, []byte("text-of-a-configmap"))
			for what, text := range kept {
				if bytes.Contains(data, text) {
					t.Errorf("%s has %s", path, what)
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	harness.Eventually(t, 20*time.Second, "the witness to have the ConfigMap", func() error {
		if !known() {
			return errors.New("not yet")
		}
		return nil
	})
}
