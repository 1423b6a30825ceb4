package join

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/cluster-bootstrap/token/jws"

	"kubelith.io/kubelith/integration/harness"
)

func decode(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

// TestDiscovery: a machine without credentials reads where the API is, the CA that its token names, and the signature
// of the token; and nothing else. With the token it reads what the cluster is like.
func TestDiscovery(t *testing.T) {
	t.Parallel()
	s := server(t)
	for what, tk := range map[string]token{"of the file": fromFile(t, s), "of the command": create(t, s)} {
		info := clusterInfo(t, s)
		if !jws.DetachedTokenIsValid(info["jws-kubeconfig-"+tk.id], info["kubeconfig"], tk.id, tk.secret) {
			t.Errorf("the token %s is not signed", what)
		}
		if want := "server: https://" + s.NodeIP + ":6443"; !strings.Contains(info["kubeconfig"], want) {
			t.Errorf("no %q in\n%s", want, info["kubeconfig"])
		}
		m := newMachine(t, s, tk)
		shown, err := m.client(t).CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelith-cluster", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("with the token %s: %v", what, err)
		}
		var cluster map[string]any
		decode(t, []byte(shown.Data["cluster.json"]), &cluster)
		version, err := s.Client(t).Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		for key, want := range map[string]string{
			"apiVersion": "kubelith.io/v1alpha1", "kind": "ClusterInfo", "clusterCIDR": "[10.42.0.0/16]", "serviceCIDR": "[10.43.0.0/16]",
			"clusterDomain": "cluster.local", "clusterDNS": "[10.43.0.10]", "kubernetesVersion": version.GitVersion,
		} {
			if got := fmt.Sprint(cluster[key]); got != want {
				t.Errorf("%s is %s, want %s", key, got, want)
			}
		}
		if cluster["network"] == "" || cluster["kubelithVersion"] == "" {
			t.Errorf("%v", cluster)
		}
	}

	cfg := rest.AnonymousClientConfig(s.RESTConfig(t))
	anonymous := clientFor(t, cfg).CoreV1().RESTClient()
	for path, want := range map[string]int{
		"/api/v1/namespaces/kube-public/configmaps/cluster-info":       http.StatusOK,
		"/api/v1/namespaces/kube-public/configmaps":                    http.StatusUnauthorized,
		"/api/v1/namespaces/kube-public/configmaps/kube-root-ca.crt":   http.StatusUnauthorized,
		"/api/v1/namespaces/kube-system/configmaps/kubelith-cluster":   http.StatusUnauthorized,
		"/api/v1/namespaces/kube-public/configmaps/cluster-info?watch": http.StatusOK, // a query does not make a get a watch
		"/version": http.StatusUnauthorized,
	} {
		var status int
		anonymous.Get().RequestURI(path).Do(t.Context()).StatusCode(&status)
		if status != want {
			t.Errorf("without credentials %s: %d, want %d", path, status, want)
		}
	}
	// What is readable cannot be written.
	if _, err := clientFor(t, cfg).CoreV1().ConfigMaps("kube-public").Patch(t.Context(), "cluster-info", "application/merge-patch+json", []byte(`{"data":{"kubeconfig":"x"}}`), metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("without credentials cluster-info is changed: %v", err)
	}
}

func TestTokenCommand(t *testing.T) {
	t.Parallel()
	s := server(t)
	list := func() string { return s.Exec(t, s.BinaryPath(), "token", "list") }
	tk := create(t, s, "--ttl=2h", "--description=for rack 7", "--once")
	if line := lineOf(list(), tk.id); !strings.Contains(line, "in 1h59m") && !strings.Contains(line, "in 2h0m0s") || !strings.Contains(line, "authentication,signing") || !strings.Contains(line, "one ") || !strings.HasSuffix(line, "for rack 7") {
		t.Errorf("listed as %q", line)
	}
	if out := list(); strings.Contains(out, tk.secret) || lineOf(out, fromFile(t, s).id) == "" {
		t.Errorf("a secret is shown, or the server's own token is not:\n%s", out)
	}
	ever := create(t, s, "--ttl=0", "--usages=signing")
	if line := lineOf(list(), ever.id); !strings.Contains(line, "never") || strings.Contains(line, "authentication") {
		t.Errorf("listed as %q", line)
	}
	if out := s.Exec(t, s.BinaryPath(), "token", "delete", tk.id, ever.text); out != fmt.Sprintf("token %s deleted\ntoken %s deleted\n", tk.id, ever.id) {
		t.Errorf("delete printed %q", out)
	}
	if out := list(); lineOf(out, tk.id) != "" || lineOf(out, ever.id) != "" {
		t.Errorf("deleted, and listed:\n%s", out)
	}
	harness.Eventually(t, 10*time.Second, "the signatures to go", func() error {
		for key := range clusterInfo(t, s) {
			if strings.HasSuffix(key, tk.id) || strings.HasSuffix(key, ever.id) {
				return fmt.Errorf("%s is there", key)
			}
		}
		return nil
	})
	for args, want := range map[string]string{
		"delete " + tk.id:                "kubelith: token " + tk.id + " does not exist: kubelith token list shows all tokens\n",
		"delete nonsense":                "kubelith: this is neither a token nor the id of one: kubelith token list shows the ids\n",
		"delete":                         "kubelith: token delete needs the id of a token: kubelith token list shows them\n",
		"create --ttl=-1h":               "kubelith: lifetime -1h0m0s is negative: use a positive one, such as 24h, or 0 for a token that never expires\n",
		"create --usages=join":           "kubelith: unknown usage \"join\": use authentication, signing or both for agents, or server\n",
		"create --ttl=day":               "kubelith: invalid value \"day\" for flag -ttl: parse error: see kubelith token create --help\n",
		"list --kubeconfig=/nonexistent": "kubelith: kubeconfig /nonexistent: invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER environment variable\n",
	} {
		if res := s.RunBinary(t, append([]string{"token"}, strings.Fields(args)...)...); res.Code != 1 || res.Stdout != "" || res.Stderr != want {
			t.Errorf("%s: exit code %d, %q, %q, want %q", args, res.Code, res.Stdout, res.Stderr, want)
		}
	}
}

// lineOf is the line of a list that begins with an id.
func lineOf(list, id string) string {
	for _, line := range strings.Split(list, "\n") {
		if strings.HasPrefix(line, id+" ") {
			return line
		}
	}
	return ""
}

// TestTokenFile: only root may read the file, its token survives a restart, and a deleted token is replaced.
func TestTokenFile(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, controlPlane)
	first := fromFile(t, s)
	if info, err := os.Stat(s.Path(tokenFile)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	inLog(t, s, `component=token to join a machine, create a token here: kubelith token create --once >token; then run there, with that file: kubelith agent --server https://`+s.NodeIP+`:6443 --token-file token`)
	if _, err := newMachine(t, s, first).join(t, "early"); err != nil {
		t.Errorf("a machine that joins as soon as the token is there: %v", err)
	}
	s.Stop(t)
	s.Launch(t)
	harness.Eventually(t, 60*time.Second, "the server to let machines join again", func() error {
		if strings.Count(s.Logs(), "to join a machine") < 2 {
			return fmt.Errorf("the log does not say so")
		}
		return nil
	})
	if again := fromFile(t, s); again != first {
		t.Errorf("after a restart the token is %s, it was %s", again.id, first.id)
	}
	s.Exec(t, s.BinaryPath(), "token", "delete", first.id)
	harness.Eventually(t, 20*time.Second, "another token", func() error {
		if fromFile(t, s) == first {
			return fmt.Errorf("it is the deleted one")
		}
		return nil
	})
	if _, err := newMachine(t, s, fromFile(t, s)).join(t, "late"); err != nil {
		t.Errorf("with the next token: %v", err)
	}
	if strings.Contains(s.Logs(), first.secret) || strings.Contains(s.Logs(), fromFile(t, s).secret) {
		t.Error("a secret is in the log")
	}
}

// TestRefusedTokens: a wrong, deleted, expired or unsuitable token is refused, and the server logs why in one line.
func TestRefusedTokens(t *testing.T) {
	t.Parallel()
	s := server(t)
	wrong := create(t, s)
	wrong.secret = strings.Repeat("x", 16)
	deleted := create(t, s)
	s.Exec(t, s.BinaryPath(), "token", "delete", deleted.id)
	expired := create(t, s)
	s.Kubectl(t, "patch", "secret", "bootstrap-token-"+expired.id, "--namespace=kube-system", "--patch", `{"stringData": {"expiration": "2020-01-01T00:00:00Z"}}`)
	unknown := wrong
	unknown.id = "zzzzzz"
	for _, tc := range []struct {
		token token
		why   string
	}{
		{wrong, "its secret is wrong"},
		{deleted, "it does not exist: it has expired, was deleted, or belongs to another cluster"},
		{unknown, "it does not exist: "},
		{create(t, s, "--usages=signing"), "it was created without the usage authentication"},
		{expired, "it (expired at |does not exist)"}, // upstream removes it at some moment
	} {
		m := newMachine(t, s, tc.token)
		line := regexp.MustCompile(`component=apiserver refused token ` + tc.token.id + ` from [0-9.]+:\d+: ` + tc.why)
		harness.Eventually(t, 20*time.Second, "the refusal of "+tc.token.id, func() error {
			_, err := m.client(t).Discovery().ServerVersion()
			if !apierrors.IsUnauthorized(err) {
				return fmt.Errorf("error %v", err)
			}
			if !line.MatchString(s.Logs()) { // of many refusals one is logged per second
				return fmt.Errorf("no line of the server's log matches %s", line)
			}
			return nil
		})
		if strings.Contains(s.Logs(), tc.token.secret) {
			t.Errorf("the secret of %s is in the log", tc.token.id)
		}
	}
}
