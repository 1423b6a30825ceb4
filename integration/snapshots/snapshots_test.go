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
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestRestoreElsewhere: a machine with another name and address takes over from one that is lost. What the cluster had when it was saved
// is there again, and the agent goes on.
func TestRestoreElsewhere(t *testing.T) {
	network := &sandbox.Network{}
	first := harness.Start(t, harness.Options{Network: network, Prepare: withPassphrase, ConfigYAML: `apiVersion: kubelith.io/v1alpha1
kind: ServerConfig
nodeLabels: [example.com/rack=r1]
clusterDomain: home.arpa
snapshotPassphraseFile: ` + passphrase + "\n"})
	agent := harness.Start(t, harness.Options{Network: network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
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
	first.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", "--timeout=60s")
	file := save(t, first, "before")
	first.Kubectl(t, "-n", ns, "create", "configmap", "later")
	content, err := os.ReadFile(first.Path(file))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(content, []byte("minions")) {
		t.Error("the snapshot can be read without the passphrase")
	}
	first.Kill9(t)
	first.Isolate(t)

	second := harness.New(t, harness.Options{Network: network, NodeName: "second", Prepare: func(s *harness.Server) error {
		return errors.Join(withPassphrase(s), os.WriteFile(s.Path("/root.snapshot"), content, 0o600))
	}})
	began := time.Now()
	r := second.RunBinary(t, "snapshot", "restore", "--node-name=second", "--passphrase-file="+passphrase, "/root.snapshot")
	if r.Code != 0 || !strings.Contains(r.Stdout, "this server is the node second") || !strings.Contains(r.Stdout, "/etc/kubelith/config.yaml is written") {
		t.Fatalf("snapshot restore: %+v", r)
	}
	second.Launch(t)
	second.WaitReady(t)
	t.Logf("Ready %s after the restore began", time.Since(began).Round(100*time.Millisecond))
	agent.Agent.Of, agent.Agent.Token = second, ""
	agent.Restart(t)
	agent.WaitReady(t)

	cs = second.Client(t)
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
		if ready != 3 || len(pods.Items) != 3 {
			return fmt.Errorf("%d of %d pods are ready", ready, len(pods.Items))
		}
		return nil
	})
	client := second.Run(t, harness.Pod(ns, "client", "/bin/probe", "sleep")) // with a token that the restored key signs
	if client.Status.PodIP == "" {
		t.Errorf("the new pod: %+v", client.Status)
	}
}

// TestSchedule: a server saves snapshots by itself and says so, keeps as many as it is told, and saves one before another release uses
// its data.
func TestSchedule(t *testing.T) {
	s := harness.Start(t, harness.Options{Args: []string{"--etcd-snapshot-schedule-cron=@every 10s", "--snapshot-retention=1"}})
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
	harness.Eventually(t, time.Minute, "a snapshot", func() error {
		if names := list(); len(names) == 1 && strings.HasPrefix(names[0], "scheduled-") {
			first = names[0]
			return nil
		}
		return fmt.Errorf("%q", list())
	})
	metrics := s.Kubectl(t, "get", "--raw", "/metrics")
	if !regexp.MustCompile(`(?m)^kubelith_snapshot_last_success_timestamp_seconds 1\.\d+e\+09$`).MatchString(metrics) || !strings.Contains(metrics, `kubelith_snapshots_total{result="saved"}`) {
		t.Error("the metrics do not say when the snapshot was saved")
	}
	harness.Eventually(t, 10*time.Second, "an Event", func() error {
		if events := s.Kubectl(t, "get", "events", "-A"); !strings.Contains(events, "SnapshotSaved") {
			return fmt.Errorf("%s", events)
		}
		return nil
	})
	save(t, s, "mine")
	harness.Eventually(t, time.Minute, "the next one instead of the first", func() error {
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
}

// TestCommands: pipes, names, and what is refused in one line, with nothing changed.
func TestCommands(t *testing.T) {
	s := harness.Start(t, harness.Options{Prepare: withPassphrase})
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
	files := map[string]string{"cut": r.Stdout[:len(r.Stdout)-10], "encrypted": r.Stdout}
	for name, content := range files {
		if err := os.WriteFile(s.Path("/"+name+".snapshot"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(s.Path("/wrong"), []byte("battery horse correct\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	command("it is truncated or damaged", "verify", "--passphrase-file="+passphrase, "/cut.snapshot")
	command("the passphrase or key is wrong", "verify", "--passphrase-file=/wrong", "/encrypted.snapshot")
	command("it is encrypted with a passphrase: give --passphrase-file", "verify", "/encrypted.snapshot")
	command("has a cluster (server/cred)", "restore", path)
	command(`there is no snapshot "two"`, "verify", "two")
	command("cannot be the name of a snapshot", "save", "a/b")
	command("no server runs on", "save", "--run-dir=/run/other")
	command("deleted", "delete", name)
	command("ENCRYPTED", "list")
	if left, err := fs.ReadDir(os.DirFS(s.Path(dir)), "."); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	s.Kubectl(t, "get", "nodes")
}
