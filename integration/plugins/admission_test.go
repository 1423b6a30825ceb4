package plugins

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// putExample copies an example's executable into a directory of the sandbox.
func putExample(t *testing.T, s *harness.Server, dir, name string) {
	t.Helper()
	text, err := os.ReadFile(buildPlugin(t, "../../plugins/examples/"+name))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(s.Path(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	// A file under another name first: a watcher must not find half of it.
	temporary := s.Path(dir + "/." + name)
	if err := os.WriteFile(temporary, text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(temporary, s.Path(dir+"/"+name)); err != nil {
		t.Fatal(err)
	}
}

// shortSecretDenied asks the plugin short-secrets.
func shortSecretDenied(t *testing.T, s *harness.Server) error {
	r := s.TryKubectl(t, "-n", "default", "create", "secret", "generic", "short", "--from-literal=password=1", "--dry-run=server")
	if !strings.Contains(r.Stderr, "denied the request: password has 1 characters") {
		return fmt.Errorf("a short Secret: %s%s", r.Stdout, r.Stderr)
	}
	return nil
}

// TestDirectory: an executable that is put into the directory of admission plugins of a running server reviews, and does
// no more when it is taken away. The server may be killed meanwhile.
func TestDirectory(t *testing.T) {
	const dir = harness.DataDir + "/plugins/admission"
	s := harness.Start(t, harness.Options{NoTestImage: true})
	putExample(t, s, dir, "short-secrets")
	harness.Eventually(t, 60*time.Second, "the plugin to review", func() error { return shortSecretDenied(t, s) })
	s.Kill9(t)
	s.Launch(t)
	s.WaitReady(t)
	harness.Eventually(t, 60*time.Second, "the plugin to review after kill -9", func() error { return shortSecretDenied(t, s) })
	if err := os.Remove(s.Path(dir + "/short-secrets")); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 60*time.Second, "the plugin to be gone", func() error {
		if err := shortSecretDenied(t, s); err == nil {
			return errors.New("it still denies")
		}
		r := s.TryKubectl(t, "-n", "default", "create", "secret", "generic", "short", "--from-literal=password=1", "--dry-run=server")
		if r.Code != 0 {
			return errors.New(r.Stderr)
		}
		return nil
	})
}
