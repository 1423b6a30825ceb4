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

// putExample builds an example and copies it into a directory of the sandbox.
func putExample(t *testing.T, s *harness.Server, dir, name string) {
	t.Helper()
	install(t, s, buildPlugin(t, "../../plugins/examples/"+name), dir+"/"+name)
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
