package badinput

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubelith.io/kubelith/integration/harness"
)

// TestAnotherClustersHost: on a machine with another cluster's kubelet a start is refused and leaves nothing, and
// whatever is tried and removed again, that cluster keeps its files and mounts.
func TestAnotherClustersHost(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	kubelet := s.Path("/var/lib/kubelet")
	for _, name := range []string{"config.yaml", "pki/kubelet-client-current.pem", "pods/1234/volumes/kubernetes.io~empty-dir/v/data", "pods/1234/etc-hosts"} {
		path := filepath.Join(kubelet, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(s.Path("/var/log/pods/ns_a_1234/c"), 0o755); err != nil {
		t.Fatal(err)
	}
	const volume = "/var/lib/kubelet/pods/1234/volumes/kubernetes.io~projected/token"
	s.Exec(t, "mkdir", "-p", volume)
	s.Exec(t, "mount", "-t", "tmpfs", "tmpfs", volume)
	before := contents(t, kubelet)
	kept := func(t *testing.T) {
		t.Helper()
		untouched(t, before, contents(t, kubelet))
		if !strings.Contains(s.Exec(t, "cat", "/proc/mounts"), " "+volume+" ") {
			t.Error("its volume was unmounted")
		}
		if _, err := os.Stat(s.Path("/var/log/pods/ns_a_1234/c")); err != nil {
			t.Error(err)
		}
	}
	nothing := func(t *testing.T) {
		t.Helper()
		for _, path := range []string{harness.DataDir, harness.RunDir, harness.AdminKubeconfig} {
			if _, err := os.Lstat(s.Path(path)); err == nil {
				t.Errorf("%s was made", path)
			}
		}
		kept(t)
	}
	reset := []string{"reset", "--yes", "--data"}

	t.Run("port taken", func(t *testing.T) {
		listen(t, s, "tcp", "0.0.0.0:10250")
		contains(t, refusal(t, s, s.BinaryCommand("server"), true), "10250", "kubelet")
		nothing(t)
		if res := s.RunBinary(t, reset...); res.Code != 0 || !strings.Contains(res.Stdout, "nothing to remove") {
			t.Errorf("reset: exit code %d, %s%s", res.Code, res.Stdout, res.Stderr)
		}
		nothing(t)
	})
	t.Run("ports free", func(t *testing.T) {
		contains(t, refusal(t, s, s.BinaryCommand("server"), true), "/var/lib/kubelet", "another kubelet's", "config.yaml, pki, pods", "--kubelet-root-dir")
		nothing(t)
	})
	t.Run("left by an older release", func(t *testing.T) { // whose refused starts left this
		if err := os.Mkdir(s.Path(harness.DataDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.Path(harness.DataDir+"/version"), []byte("1\nkubelith v0\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if res := s.RunBinary(t, reset...); res.Code != 0 || !strings.Contains(res.Stdout, "left /var/lib/kubelet") {
			t.Errorf("reset: exit code %d, %s%s", res.Code, res.Stdout, res.Stderr)
		}
		nothing(t)
	})
	t.Run("server without kubelet", func(t *testing.T) {
		startAndStop(t, s, harness.DataDir)
		kept(t)
		if res := s.RunBinary(t, reset...); res.Code != 0 {
			t.Errorf("reset: exit code %d, %s%s", res.Code, res.Stdout, res.Stderr)
		}
		nothing(t)
	})
}

// TestDirectoriesOfOthers: directories that are not Kubelith's alone, or of which a part is missing.
func TestDirectoriesOfOthers(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{NoTestImage: true})
	put := func(path, text string) {
		t.Helper()
		path = s.Path(path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("/var/lib/home/.bashrc", "")
	put("/var/lib/home/Documents/thesis", "precious")
	put("/var/lib/late/version", "1\nkubelith v0\n")
	put("/var/lib/late/agent/containerd/x", "")
	put("/var/lib/late/server/.keep", "")
	for name, tc := range map[string]struct {
		args, want []string
	}{
		"home directory": {[]string{"--data-dir=/var/lib/home"}, []string{"/var/lib/home has other files (.bashrc, Documents)", "--data-dir"}},
		"late mount":     {[]string{"--data-dir=/var/lib/late"}, []string{"/var/lib/late has a cluster's agent/containerd", "/var/lib/late/server", "is missing", "reset --data"}},
		"nested":         {[]string{"--data-dir=/var/lib/n", "--run-dir=/var/lib/n/run"}, []string{"--run-dir", "/var/lib/n/run", "name one beside it"}},
	} {
		t.Run(name, func(t *testing.T) {
			before := contents(t, s.Path("/var/lib"))
			contains(t, refusal(t, s, s.BinaryCommand(append([]string{"server"}, tc.args...)...), true), tc.want...)
			untouched(t, before, contents(t, s.Path("/var/lib")))
			if name == "nested" {
				return
			}
			if res := s.RunBinary(t, append([]string{"check"}, tc.args...)...); res.Code == 0 || !strings.Contains(res.Stdout, tc.want[0]) {
				t.Errorf("check: exit code %d\n%s", res.Code, res.Stdout)
			}
		})
	}
}
