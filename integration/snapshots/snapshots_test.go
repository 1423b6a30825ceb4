// Package snapshots tests what `kubelith snapshot` saves and restores, as docs/backup.md describes it.
package snapshots

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/components/controlplane/snapshot/bucket/buckettest"
	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	dir        = harness.DataDir + "/server/snapshots"
	passphrase = "/etc/kubelith/passphrase"
)

func withPassphrase(s *harness.Server) error {
	path := s.Path(passphrase)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte("correct horse battery\n"), 0o600)
}

// save returns the path of a new snapshot.
func save(t *testing.T, s *harness.Server, args ...string) string {
	t.Helper()
	began := time.Now()
	r := s.RunBinary(t, append([]string{"snapshot", "save"}, args...)...)
	path, _, _ := strings.Cut(r.Stdout, ",")
	if r.Code != 0 || !strings.HasPrefix(path, dir) || !strings.Contains(r.Stdout, "restored once to test it") {
		t.Fatalf("snapshot save: %+v", r)
	}
	t.Logf("in %s: %s", time.Since(began).Round(10*time.Millisecond), strings.TrimSpace(r.Stdout))
	return path
}

// TestRestoreElsewhere: a machine with another name and address takes over from one that is lost, with a snapshot of
// the store. What the cluster had when it was saved is there again. The agent, which knows the server by a name of DNS,
// goes on by itself: so do its pods.
func TestRestoreElsewhere(t *testing.T) {
	t.Parallel()
	store := serveStore(t)
	network := &sandbox.Network{}
	first := harness.Start(t, harness.Options{Network: network, Prepare: func(s *harness.Server) error {
		return errors.Join(withPassphrase(s), withStore(s))
	}, ConfigYAML: `apiVersion: kubelith.io/v1alpha1
kind: ServerConfig
nodeLabels: [example.com/rack=r1]
clusterDomain: home.arpa
snapshotPassphraseFile: ` + passphrase + `
snapshotS3Endpoint: ` + store.endpoint + `
snapshotS3Bucket: ` + buckettest.Bucket + `
snapshotS3Folder: clusters/shop
snapshotS3CredentialsFile: ` + credentials + `
snapshotS3Insecure: true
`})
	agent := harness.Start(t, harness.Options{Network: network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t), URL: "https://cluster.test:6443"},
		Prepare: func(s *harness.Server) error { return resolve(s, "cluster.test", first.NodeIP) }})
	cs := first.Client(t)
	const ns = "shop"
	if _, err := cs.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 30*time.Second, "the namespace's ServiceAccount", func() error {
		_, err := cs.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	if _, err := cs.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "key"}, StringData: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first.Deploy(t, harness.Pod(ns, "web", "/bin/probe", "sleep"), 3)
	first.WaitRollout(t, ns, "deployment/web")
	pod := harness.Pod(ns, "kept", "/bin/probe", "sleep")
	pod.Spec.NodeName = agent.NodeName()
	kept := first.Run(t, pod)
	process := agent.ContainerPID(t, kept, "main")
	file := save(t, first, "before")
	name := strings.TrimSuffix(filepath.Base(file), ".snapshot")
	first.Kubectl(t, "-n", ns, "create", "configmap", "later")
	content, err := os.ReadFile(first.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("minions")) {
		t.Error("the snapshot can be read without the passphrase")
	}
	if keys, err := store.Keys(); err != nil || !slices.Equal(keys, []string{"clusters/shop/" + name + ".snapshot"}) {
		t.Errorf("the store has %q, %v", keys, err)
	}
	out := first.Exec(t, first.BinaryPath(), "snapshot", "list")
	if t.Logf("snapshot list:\n%s", out); !strings.Contains(out, name) || !strings.Contains(out, "both") {
		t.Errorf("snapshot list: %s", out)
	}
	if out := first.Exec(t, first.BinaryPath(), "snapshot", "verify", "s3:"+name); !strings.Contains(out, "s3://") || !strings.Contains(out, ": good, ") {
		t.Errorf("snapshot verify: %s", out)
	}
	store.Away(true)
	r := first.RunBinary(t, "snapshot", "save", "alone")
	if r.Code == 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "is saved and tested, but not copied to the store") {
		t.Errorf("snapshot save while the store is away: %+v", r)
	}
	if r := first.RunBinary(t, "snapshot", "list"); r.Code == 0 || !strings.Contains(r.Stdout, "alone-") {
		t.Errorf("snapshot list while the store is away: %+v", r)
	}
	store.Away(false)
	first.Kill9(t)
	first.Isolate(t)

	second := harness.New(t, harness.Options{Network: network, NodeName: "second", Prepare: func(s *harness.Server) error {
		return errors.Join(withPassphrase(s), withStore(s))
	}})
	restore := func(more ...string) harness.Result {
		return second.RunBinary(t, append(append([]string{"snapshot", "restore", "--node-name=second", "--snapshot-s3-endpoint=" + store.endpoint, "--snapshot-s3-bucket=" + buckettest.Bucket,
			"--snapshot-s3-folder=clusters/shop", "--snapshot-s3-insecure", "--passphrase-file=" + passphrase}, more...), name)...)
	}
	if r := restore(); r.Code == 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "the account of the store has no keys") {
		t.Errorf("without keys: %+v", r)
	}
	store.Break(10 << 10)
	if r := restore("--snapshot-s3-credentials-file=" + credentials); r.Code == 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "store "+store.endpoint) {
		t.Errorf("a store that breaks off: %+v", r)
	}
	store.Break(0)
	if left := filesIn(t, second.Path(harness.DataDir)); len(left) > 1 { // the test image
		t.Errorf("a failed restore has left %q", left)
	}
	began := time.Now()
	r = restore("--snapshot-s3-credentials-file=" + credentials)
	t.Logf("snapshot restore:\n%s%s", r.Stdout, r.Stderr)
	if r.Code != 0 || !strings.Contains(r.Stdout, "this server is the node second") || !strings.Contains(r.Stdout, "wrote /etc/kubelith/config.yaml") || strings.Contains(r.Stdout, "missing") {
		t.Fatalf("snapshot restore: %+v", r)
	}
	second.Launch(t)
	second.WaitReady(t)
	t.Logf("Ready %s after the restore began", time.Since(began).Round(100*time.Millisecond))
	cs = second.Client(t)
	ready := time.Now()
	if err := resolve(agent, "cluster.test", second.NodeIP); err != nil {
		t.Fatal(err)
	}
	agent.Agent.Of = second
	rejoined(t, agent, ready)
	t.Logf("the agent was back %s after the name was moved", time.Since(ready).Round(100*time.Millisecond))

	secret, err := cs.CoreV1().Secrets(ns).Get(t.Context(), "key", metav1.GetOptions{})
	if err != nil || string(secret.Data["a"]) != "b" {
		t.Errorf("the Secret: %v, %v", secret, err)
	}
	if _, err := cs.CoreV1().ConfigMaps(ns).Get(t.Context(), "later", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("what was made after the snapshot: %v", err)
	}
	if rack := second.Node(t).Labels["example.com/rack"]; rack != "r1" {
		t.Errorf("the settings of the configuration: label rack is %q", rack)
	}
	harness.Eventually(t, 2*time.Minute, "the application on the nodes that exist", func() error {
		if nodes, err := cs.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil || len(nodes.Items) != 2 {
			return fmt.Errorf("nodes: %v, %w", nodes.Items, err)
		}
		pods, err := cs.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		ready := 0
		for _, pod := range pods.Items {
			if pod.Spec.NodeName == first.NodeName() {
				return fmt.Errorf("pod %s is on the lost node", pod.Name)
			}
			if harness.PodReady(&pod) == nil {
				ready++
			}
		}
		if ready != 4 || len(pods.Items) != 4 {
			return fmt.Errorf("%d of %d pods are ready", ready, len(pods.Items))
		}
		return nil
	})
	now, err := cs.CoreV1().Pods(ns).Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := agent.ContainerPID(t, now, "main"); now.UID != kept.UID || got != process || now.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the pod on the agent was process %d and is %d: %+v", process, got, now.Status)
	}
	client := second.Run(t, harness.Pod(ns, "client", "/bin/probe", "sleep")) // with a token that the restored key signs
	if client.Status.PodIP == "" {
		t.Errorf("the new pod: %+v", client.Status)
	}

	// Without a name, the agent is started with the new address; it needs no token.
	agent.Agent.URL, agent.Agent.Token = "", ""
	restarted := time.Now()
	agent.Restart(t)
	rejoined(t, agent, restarted)
	for _, s := range []*harness.Server{first, agent, second} {
		if strings.Contains(s.Logs(), buckettest.SecretKey) {
			t.Errorf("the log of %s has the secret key of the store", s.NodeName())
		}
	}
}

// rejoined waits until the node has renewed its Lease after a time: what the snapshot has of it is older.
func rejoined(t *testing.T, s *harness.Server, after time.Time) {
	t.Helper()
	harness.Eventually(t, 2*time.Minute, s.NodeName()+" to renew its Lease", func() error {
		lease, err := s.Client(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), s.NodeName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.RenewTime == nil || !lease.Spec.RenewTime.After(after) {
			return fmt.Errorf("renewed at %s", lease.Spec.RenewTime)
		}
		return nil
	})
	s.WaitReady(t)
}

// TestSchedule: a server saves snapshots by itself and reports them, keeps as many as configured, and saves one before
// another release uses its data.
func TestSchedule(t *testing.T) {
	t.Parallel()
	store := serveStore(t)
	store.Away(true)
	s := harness.Start(t, harness.Options{NoTestImage: true, Prepare: withStore, Env: []string{"AWS_ACCESS_KEY_ID=" + buckettest.AccessKey, "AWS_SECRET_ACCESS_KEY=" + buckettest.SecretKey},
		Args: []string{"--etcd-snapshot-schedule-cron=@every 20s", "--snapshot-retention=1",
			"--etcd-s3", "--etcd-s3-endpoint=" + store.endpoint, "--etcd-s3-bucket=" + buckettest.Bucket, "--etcd-s3-insecure"}})
	list := func() (names []string) {
		t.Helper()
		var all []struct{ Path, Fault string }
		if err := json.Unmarshal([]byte(s.Exec(t, s.BinaryPath(), "snapshot", "list", "-o", "json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.Fault != "" {
				t.Errorf("%+v", f)
			}
			names = append(names, strings.TrimSuffix(filepath.Base(f.Path), ".snapshot"))
		}
		return names
	}
	var first string
	harness.Eventually(t, 3*time.Minute, "a snapshot", func() error {
		names := list()
		if len(names) != 1 || !strings.HasPrefix(names[0], "scheduled-") {
			return fmt.Errorf("%q", names)
		}
		first = names[0]
		return nil
	})
	metrics := s.Kubectl(t, "get", "--raw", "/metrics")
	if !regexp.MustCompile(`(?m)^kubelith_snapshot_last_success_timestamp_seconds 1\.\d+e\+09$`).MatchString(metrics) || !strings.Contains(metrics, `kubelith_snapshots_total{result="saved"}`) {
		t.Error("the metrics do not have the time of the snapshot")
	}
	harness.Eventually(t, time.Minute, "an Event", func() error {
		if events := s.Kubectl(t, "get", "events", "-A"); !strings.Contains(events, "SnapshotSaved") {
			return fmt.Errorf("%s", events)
		}
		return nil
	})
	// The store is away: that is reported, fails no snapshot, and recovers by itself.
	harness.Eventually(t, 2*time.Minute, "the failure to copy it", func() error {
		metrics := s.Kubectl(t, "get", "--raw", "/metrics")
		if events := s.Kubectl(t, "get", "events", "-A"); !strings.Contains(events, "SnapshotUploadFailed") || !strings.Contains(metrics, `kubelith_snapshot_uploads_total{result="failed"}`) {
			return fmt.Errorf("%s", events)
		}
		return nil
	})
	if strings.Contains(s.Kubectl(t, "get", "--raw", "/metrics"), `kubelith_snapshots_total{result="failed"}`) {
		t.Error("a snapshot failed")
	}
	store.Away(false)
	save(t, s, "mine") // without the settings of the store: the server copies it
	harness.Eventually(t, 3*time.Minute, "the copies", func() error {
		keys, err := store.Keys()
		stored := strings.Join(keys, " ")
		metrics := s.Kubectl(t, "get", "--raw", "/metrics")
		if events := s.Kubectl(t, "get", "events", "-A"); err != nil || strings.Count(stored, "scheduled-") != 1 || !strings.Contains(stored, "mine-") || !strings.Contains(events, "SnapshotUploaded") ||
			!regexp.MustCompile(`(?m)^kubelith_snapshot_last_upload_timestamp_seconds 1\.\d+e\+09$`).MatchString(metrics) {
			return fmt.Errorf("%s, %v, %s", stored, err, events)
		}
		return nil
	})
	if log := s.Logs(); strings.Contains(log, buckettest.SecretKey) || !strings.Contains(log, "cannot copy snapshots to the store") {
		t.Error("the log has the secret key of the store, or not that it was away")
	}
	harness.Eventually(t, 3*time.Minute, "the next one instead of the first", func() error {
		names := strings.Join(list(), " ")
		if strings.Contains(names, first) || !strings.Contains(names, "scheduled-") || !strings.Contains(names, "mine-") {
			return fmt.Errorf("%s", names)
		}
		return nil
	})

	s.Stop(t)
	version := s.Path(harness.DataDir + "/version")
	content, err := os.ReadFile(version)
	if err != nil {
		t.Fatal(err)
	}
	format, _, _ := strings.Cut(string(content), "\n")
	if err := os.WriteFile(version, []byte(format+"\nkubelith v0.0.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Launch(t)
	s.WaitReady(t)
	if names := strings.Join(list(), " "); !strings.Contains(names, "upgrade-") || !strings.Contains(s.Logs(), "before the upgrade from v0.0.1") {
		t.Errorf("before the upgrade: %s", names)
	}
	harness.Eventually(t, 10*time.Second, "the release to be recorded", func() error {
		if content, err := os.ReadFile(version); err != nil || strings.Contains(string(content), "v0.0.1") {
			return fmt.Errorf("%q, %v", content, err)
		}
		return nil
	})
}

// TestCommands: pipes, names, and what is refused in one line, with nothing changed.
func TestCommands(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{NoTestImage: true, Prepare: withPassphrase})
	command := func(want string, args ...string) {
		t.Helper()
		r := s.RunBinary(t, append([]string{"snapshot"}, args...)...)
		if failed := r.Code != 0; failed != strings.HasPrefix(r.Stderr, "kubelith: ") || !strings.Contains(r.Stdout+r.Stderr, want) || failed && strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("snapshot %q, want %q: %+v", args, want, r)
		}
	}
	path := save(t, s, "one")
	name := strings.TrimSuffix(filepath.Base(path), ".snapshot")
	command(": good, ", "verify", name)
	command(": good, ", "verify", path)
	r := s.RunBinary(t, "snapshot", "save", "--snapshot-passphrase-file="+passphrase, "-")
	if r.Code != 0 {
		t.Fatalf("%+v", r.Stderr)
	}
	piped := s.BinaryCommand("snapshot", "verify", "--passphrase-file="+passphrase, "-")
	piped.Stdin = strings.NewReader(r.Stdout)
	if out, err := piped.CombinedOutput(); err != nil || !strings.Contains(string(out), "good") || strings.Contains(string(out), "not encrypted") {
		t.Errorf("verify of a pipe: %v\n%s", err, out)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.Path("/etc/kubelith/age-key"), []byte(key.String()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	forKey := s.RunBinary(t, "snapshot", "save", "--snapshot-passphrase-file=", "--snapshot-recipient="+key.Recipient().String(), "-")
	for option, want := range map[string]string{"--identity=/etc/kubelith/age-key": ": good, ", "--passphrase-file=" + passphrase: "the passphrase or key is wrong"} {
		piped := s.BinaryCommand("snapshot", "verify", option, "-")
		piped.Stdin = strings.NewReader(forKey.Stdout)
		if out, err := piped.CombinedOutput(); (err == nil) != strings.Contains(want, "good") || !strings.Contains(string(out), want) {
			t.Errorf("verify with %s: %v\n%s%s", option, err, out, forKey.Stderr)
		}
	}
	fromPipe := func(dir, content string) (string, error) {
		restore := s.BinaryCommand("snapshot", "restore", "--config=", "--data-dir="+dir, "--passphrase-file="+passphrase, "-")
		restore.Stdin = strings.NewReader(content)
		out, err := restore.CombinedOutput()
		return string(out), err
	}
	if out, err := fromPipe("/var/lib/cut", r.Stdout[:len(r.Stdout)-10]); err == nil || !strings.Contains(out, "the snapshot on standard input: it is truncated or damaged") {
		t.Errorf("restore of half a pipe: %v\n%s", err, out)
	}
	if left := filesIn(t, s.Path("/var/lib/cut")); len(left) > 0 {
		t.Errorf("restore of half a pipe has left %q", left)
	}
	if out, err := fromPipe("/var/lib/piped", r.Stdout); err != nil || !strings.Contains(out, "start the cluster with kubelith server") {
		t.Errorf("restore of a pipe: %v\n%s", err, out)
	}
	if left := filesIn(t, s.Path("/var/lib/piped/server/db")); len(left) == 0 {
		t.Error("restore of a pipe has created no database")
	}
	// k3s' way to restore.
	k3s := func(want string, args ...string) {
		t.Helper()
		r := s.RunBinary(t, append([]string{"server", "--config=", "--cluster-reset-restore-path=" + path}, args...)...)
		if !strings.Contains(r.Stdout+r.Stderr, want) || r.Code != 0 && strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("server %q, want %q: %+v", args, want, r)
		}
	}
	k3s("--cluster-reset-restore-path does nothing alone: add --cluster-reset")
	k3s("has a cluster (server/cred)", "--cluster-reset")
	k3s("start the cluster with kubelith server", "--cluster-reset", "--data-dir=/var/lib/reset")
	plain, err := os.ReadFile(s.Path(path))
	if err != nil {
		t.Fatal(err)
	}
	ours := regexp.MustCompile(`"kubernetes":"v1\.\d+\.\d+`)
	files := map[string]string{"cut": r.Stdout[:len(r.Stdout)-10], "encrypted": r.Stdout, "foreign": "SQLite format 3",
		"newer": ours.ReplaceAllString(string(plain), `"kubernetes":"v1.99.0`),
		"older": ours.ReplaceAllString(string(plain), `"kubernetes":"v1.9.0`),
		"later": strings.Replace(string(plain), "kubelith snapshot 1", "kubelith snapshot 2", 1),
	}
	for name, content := range files {
		if err := os.WriteFile(s.Path("/opt/"+name+".snapshot"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.Path("/opt/wrong"), []byte("battery horse correct\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	// Restored to an empty machine: one line, and nothing is written.
	for want, args := range map[string][]string{
		"it is truncated or damaged":                         {"--passphrase-file=" + passphrase, "/opt/cut.snapshot"},
		"the passphrase or key is wrong":                     {"--passphrase-file=/opt/wrong", "/opt/encrypted.snapshot"},
		"it is from Kubernetes v1.99.0":                      {"/opt/newer.snapshot"},
		"reads data that is at most one minor release older": {"/opt/older.snapshot"},
		"it was written by a later release":                  {"/opt/later.snapshot"},
		"it is not a snapshot":                               {"/opt/foreign.snapshot"},
	} {
		command(want, append([]string{"restore", "--data-dir=/var/lib/empty"}, args...)...)
		if left := filesIn(t, s.Path("/var/lib/empty")); len(left) > 0 {
			t.Errorf("restore %q has left %q", args, left)
		}
	}
	command("it is truncated or damaged", "verify", "--passphrase-file="+passphrase, "/opt/cut.snapshot")
	command("the passphrase or key is wrong", "verify", "--passphrase-file=/opt/wrong", "/opt/encrypted.snapshot")
	command("it is encrypted with a passphrase: give --passphrase-file", "verify", "/opt/encrypted.snapshot")
	command("has a cluster (server/cred)", "restore", path)
	command("there is no store: name its bucket", "verify", "s3:"+name)
	command("--etcd-s3: the store has no bucket", "list", "--etcd-s3")
	command(`there is no snapshot "two"`, "verify", "two")
	command("cannot be the name of a snapshot", "save", "a/b")
	command("no server runs on", "save", "--run-dir=/run/other")
	screen, shown := harness.Terminal(t)
	verify := s.BinaryCommand("snapshot", "verify", name)
	verify.Stderr = screen
	if err := verify.Run(); err != nil || screen.Close() != nil {
		t.Errorf("on a terminal: %v", err)
	}
	harness.Eventually(t, 10*time.Second, "the progress on a terminal", func() error {
		if text := shown(); !strings.Contains(text, "verifying [") || !strings.Contains(text, "starting etcd on it") {
			return fmt.Errorf("it shows %q", text)
		}
		return nil
	})
	// Scheduled ones are pruned, and no others.
	scheduled := "scheduled" + strings.TrimPrefix(name[:strings.LastIndex(name, "-")], "one") // and the node
	for _, at := range []string{"20260101T000000Z", "20260102T000000Z"} {
		if err := os.WriteFile(s.Path(dir+"/"+scheduled+"-"+at+".snapshot"), plain, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command("keep at least 1 scheduled snapshot", "prune", "--snapshot-retention=0")
	command("snapshot "+scheduled+"-2026010", "prune", "--etcd-snapshot-retention=1")
	if out := s.RunBinary(t, "etcd-snapshot", "ls").Stdout; strings.Count(out, "scheduled-") != 1 || !strings.Contains(out, name) {
		t.Errorf("etcd-snapshot ls after prune:\n%s", out)
	}
	for _, path := range filesIn(t, s.Path(dir)) {
		if base := filepath.Base(path); strings.HasPrefix(base, scheduled) {
			command("deleted", "delete", strings.TrimSuffix(base, ".snapshot"))
		}
	}
	command("deleted", "delete", name)
	command("ENCRYPTED", "list")
	if left, err := fs.ReadDir(os.DirFS(s.Path(dir)), "."); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	s.Kubectl(t, "get", "nodes")
}
