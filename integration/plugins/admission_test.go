package plugins

import (
	"errors"
	"fmt"
	"strings"
	"testing"

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
