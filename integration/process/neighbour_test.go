package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestResetBesideServer: whatever directories reset is given, a server that runs keeps all it has.
func TestResetBesideServer(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	pod := s.Run(t, harness.Pod(s.Namespace(t), "a", "/bin/probe", "sleep"))
	container := processOf(t, s, pod)
	// A cluster that has stopped, on other directories.
	second := s.Path("/var/lib/second")
	if err := os.MkdirAll(second, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(second, "version"), []byte("1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	running := fmt.Sprintf("pid %d", s.PID())
	for _, c := range []struct {
		args   string
		want   string // on stderr, or on stdout where the exit code is 0
		refuse bool
	}{
		{"--data-dir=/var/lib/none", running, true},
		{"--data-dir=/var/lib/second", running, true},
		{"--run-dir=/run/none", running, true},
		{"--data-dir=/var/lib/none --run-dir=/run/none", running, true}, // it has the kubelet's directory
		{"--data-dir=/var/lib/none --run-dir=/run/none --kubelet-root-dir=/var/lib/nok", "nothing to remove", false},
		{"--data-dir=/var/lib/second --run-dir=/run/none --kubelet-root-dir=/var/lib/nok", "removed /var/lib/second", false},
	} {
		res := s.RunBinary(t, append([]string{"reset", "--yes", "--data"}, strings.Fields(c.args)...)...)
		if text := res.Stdout + res.Stderr; (res.Code != 0) != c.refuse || !strings.Contains(text, c.want) {
			t.Errorf("reset %s: exit code %d, %s", c.args, res.Code, text)
		}
	}
	container.same(t, "reset of other directories")
	tables := s.Exec(t, "nft", "list", "tables")
	for _, table := range []string{"kube-proxy", "kubelith_network"} {
		if !strings.Contains(tables, table) {
			t.Errorf("the table %s is gone: %s", table, tables)
		}
	}
	for _, path := range []string{harness.DataDir + "/version", harness.RunDir + "/etcd/etcd.sock", harness.AdminKubeconfig, "/var/lib/kubelet/pods", "/sys/class/net/cni0"} {
		if !exists(s, path) {
			t.Errorf("%s was removed", path)
		}
	}
	if err := alive(s); err != nil {
		t.Error(err)
	}
	if err := agree(t.Context(), t, s); err != nil {
		t.Error(err)
	}
	// Nor does a second server take a run directory that is in use, or the admin kubeconfig.
	kubeconfig, err := os.ReadFile(s.Path(harness.AdminKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	res := s.RunBinary(t, "server", "--data-dir=/var/lib/third", "--https-port=7443", "--disable="+strings.Join(controlPlane, ","))
	if res.Code == 0 || !strings.Contains(res.Stderr, harness.RunDir+" is in use") || strings.Count(res.Stderr, "\n") != 1 {
		t.Errorf("a server on the run directory of another: exit code %d, %s", res.Code, res.Stderr)
	}
	if now, _ := os.ReadFile(s.Path(harness.AdminKubeconfig)); string(now) != string(kubeconfig) {
		t.Error("it changed the admin kubeconfig")
	}
}

// TestUninstall: uninstall.sh removes all of the server's directories, whose paths are in the configuration file.
func TestUninstall(t *testing.T) {
	t.Parallel()
	const config = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n" +
		"dataDir: /var/lib/moved/data\nrunDir: /run/moved\nwriteKubeconfig: /var/lib/moved/admin.yaml\n"
	s := harness.Start(t, harness.Options{ConfigYAML: config, Disable: controlPlane, NoWait: true, NoTestImage: true})
	harness.Eventually(t, 60*time.Second, "kubelith kubectl with the file's kubeconfig", func() error {
		if err := alive(s); err != nil {
			return err
		}
		if res := s.TryExec(t, s.BinaryPath(), "kubectl", "get", "--raw=/readyz"); res.Stdout != "ok" {
			return errors.New(res.Stderr)
		}
		return nil
	})
	s.Stop(t)
	// The machine's own programs are not the sandbox's.
	s.Exec(t, "mount", "-t", "tmpfs", "tmpfs", "/usr/local/bin")
	s.Exec(t, "ln", "-s", s.BinaryPath(), "/usr/local/bin/kubelith")
	script, err := filepath.Abs("../../scripts/uninstall.sh")
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "sh", script, "--yes")
	for _, path := range []string{"/var/lib/moved/data", "/var/lib/moved/admin.yaml", "/run/moved", "/usr/local/bin/kubelith"} {
		if exists(s, path) {
			t.Errorf("%s is left", path)
		}
	}
	if text, _ := os.ReadFile(s.Path("/etc/kubelith/config.yaml")); string(text) != config {
		t.Errorf("the user's configuration is now %q", text)
	}
}
