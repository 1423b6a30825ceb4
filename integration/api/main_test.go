// Package api tests the API server as its clients see it: what each user may do and read, how it is extended, and that
// the components of the process call it in memory under their own identities.
package api

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

const (
	auditLog  = "/var/log/kubelith-audit.log"
	tokenFile = "/etc/kubelith/tokens.csv"
	abacFile  = "/etc/kubelith/abac.jsonl"
	usersFile = "/etc/kubelith/users.csv"
)

// cluster has the upstream arguments that the tests check.
var cluster = harness.NewShared(harness.Options{
	Args: []string{
		"--apiserver-arg=audit-log-path=" + auditLog,
		"--apiserver-arg=audit-policy-file=/etc/kubelith/audit.yaml",
		"--apiserver-arg=token-auth-file=" + tokenFile,
		"--apiserver-arg=basic-auth-file=" + usersFile,
		"--apiserver-arg=authorization-mode=Node,RBAC,ABAC",
		"--apiserver-arg=authorization-policy-file=" + abacFile,
		"--apiserver-arg=feature-gates=APIServerWebhookAuthenticationToken=true", // alpha
		"--kubelet-arg=max-pods=77",
		"--apiserver-arg=event-ttl=20m",
	},
	Prepare: func(s *harness.Server) error {
		if err := os.MkdirAll(s.Path("/etc/kubelith"), 0o755); err != nil {
			return err
		}
		for path, content := range map[string]string{
			"/etc/kubelith/audit.yaml": "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules: [{level: Metadata}]\n",
			tokenFile:                  "token-of-file,file-user,1001,\"file-group\"\ntoken-of-abac,abac-user,1002\n",
			usersFile:                  users,
			abacFile:                   `{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"abac-user","namespace":"*","resource":"configmaps","apiGroup":"*","readonly":true}}` + "\n",
		} {
			if err := os.WriteFile(s.Path(path), []byte(content), 0o600); err != nil {
				return err
			}
		}
		return nil
	},
})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// as returns a client with which the admin impersonates a user.
func as(t *testing.T, s *harness.Server, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	cfg := s.RESTConfig(t)
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return clientFor(t, cfg)
}

// withToken is a client that has only a bearer token.
func withToken(t *testing.T, s *harness.Server, token string) kubernetes.Interface {
	t.Helper()
	cfg := rest.AnonymousClientConfig(s.RESTConfig(t))
	cfg.BearerToken = token
	return clientFor(t, cfg)
}

func clientFor(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// anonymous gets a path without credentials and returns the status and the body.
func anonymous(t *testing.T, s *harness.Server, path string) (int, string) {
	t.Helper()
	transport, err := rest.TransportFor(rest.AnonymousClientConfig(s.RESTConfig(t)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(10*time.Second))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// apply is kubectl apply of a manifest, which must succeed.
func apply(t *testing.T, s *harness.Server, ns, manifest string, args ...string) string {
	t.Helper()
	return s.KubectlInput(t, manifest, append([]string{"-n", ns, "apply", "-f", "-"}, args...)...)
}

// refused is kubectl with a manifest that must be refused; it returns the message.
func refused(t *testing.T, s *harness.Server, manifest string, args ...string) (string, error) {
	t.Helper()
	cmd := s.KubectlCommand(append(args, "-f", "-")...)
	cmd.Stdin = strings.NewReader(manifest)
	out, err := cmd.CombinedOutput()
	if err == nil {
		return "", fmt.Errorf("kubectl %s was not refused: %s", strings.Join(args, " "), out)
	}
	return string(out), nil
}

// mustRefuse checks the message of a refusal, after a moment for policies to become effective.
func mustRefuse(t *testing.T, s *harness.Server, manifest, want string, args ...string) {
	t.Helper()
	harness.Eventually(t, 20*time.Second, "a refusal with "+want, func() error {
		message, err := refused(t, s, manifest, args...)
		if err == nil && !strings.Contains(message, want) {
			err = fmt.Errorf("the message is %s", message)
		}
		return err
	})
}

// configMap is a manifest; labels and data are what stands between braces.
func configMap(name, labels, data string) string {
	manifest := fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: %s\n", name)
	if labels != "" { // an empty map would be a field that its writer owns
		manifest += fmt.Sprintf("  labels: {%s}\n", labels)
	}
	if data != "" {
		manifest += fmt.Sprintf("data: {%s}\n", data)
	}
	return manifest
}

// event is a line of the audit log.
type event struct {
	User struct {
		Username string
		Groups   []string
	}
	UserAgent string
	Verb      string
	ObjectRef *struct{ APIGroup, Resource, Subresource, Namespace string }
}

func auditEvents(t *testing.T, s *harness.Server) []event {
	t.Helper()
	content, err := os.ReadFile(s.Path(auditLog))
	if err != nil {
		t.Fatal(err)
	}
	var events []event
	lines := strings.Split(string(content), "\n")
	for _, line := range lines[:len(lines)-1] { // the last one may be being written
		var e event
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("audit log: %v: %s", err, line)
		}
		events = append(events, e)
	}
	return events
}

// sleeper is a pod that has something to protect.
func sleeper(ns, name string) *corev1.Pod { return harness.Pod(ns, name, "/bin/probe", "sleep") }
