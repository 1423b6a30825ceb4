package plugins

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

// putExample builds an example and copies it into a directory of the sandbox.
func putExample(t *testing.T, s *harness.Server, dir, name string) {
	t.Helper()
	install(t, s, harness.BuildProgram(t, "../../plugins/examples/"+name), dir+"/"+name)
}

// shortSecretDenied asks whether the plugin short-secrets rejects a short Secret.
func shortSecretDenied(t *testing.T, s *harness.Server) error {
	_, err := s.Client(t).CoreV1().Secrets("default").Create(t.Context(),
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{GenerateName: "short-"}, StringData: map[string]string{"password": "1234"}},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil {
		return errShortSecret
	}
	if !strings.Contains(err.Error(), "denied the request: password has 4 characters") {
		return fmt.Errorf("a short Secret: %w", err)
	}
	return nil
}

var errShortSecret = errors.New("a short Secret is allowed")

// TestDirectory: an executable that is put into the directory of admission plugins of a running server reviews, and
// does no more when it is taken away. The server may be killed meanwhile.
func TestDirectory(t *testing.T) {
	t.Parallel()
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
		if err := shortSecretDenied(t, s); err != errShortSecret {
			return fmt.Errorf("it is not allowed: %v", err)
		}
		return nil
	})
}
