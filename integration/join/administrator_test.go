package join

import (
	"os"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"kubelith.io/kubelith/integration/harness"
)

// TestAdministrator: the admin kubeconfig is not in system:masters; the one that a command creates for emergencies is.
func TestAdministrator(t *testing.T) {
	t.Parallel()
	s := server(t)
	groups := func(config *rest.Config) []string {
		t.Helper()
		who, err := clientFor(t, config).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return who.Status.UserInfo.Groups
	}
	if got := groups(s.RESTConfig(t)); !slices.Equal(got, []string{"kubelith:admins", "system:authenticated"}) {
		t.Errorf("the administrator is in %v", got)
	}
	written, err := os.ReadFile(s.Path(harness.AdminKubeconfig))
	if err != nil {
		t.Fatal(err)
	}
	if printed := s.Exec(t, s.BinaryPath(), "kubeconfig"); printed != string(written) {
		t.Errorf("kubelith kubeconfig prints\n%s", printed)
	}
	config, err := clientcmd.RESTConfigFromKubeConfig([]byte(s.Exec(t, s.BinaryPath(), "kubeconfig", "--super-admin", "--ttl=5m")))
	if err != nil {
		t.Fatal(err)
	}
	if config.Host != "https://127.0.0.1:6443" {
		t.Errorf("it is for %s", config.Host)
	}
	config.Host = s.URL()
	if got := groups(config); !slices.Equal(got, []string{"system:masters", "system:authenticated"}) {
		t.Errorf("the super administrator is in %v", got)
	}
	for args, want := range map[string]string{
		"--super-admin --ttl=1000h":             "kubelith: lifetime 1000h0m0s is not allowed: use a positive one of at most 168h0m0s\n",
		"--ttl=1h":                              "kubelith: --ttl is for --super-admin: the administrator's kubeconfig is renewed by the server\n",
		"--super-admin --data-dir=/nonexistent": "kubelith: /nonexistent/server/tls/cluster-ca.crt does not exist: run this as root on the server, with its --data-dir\n",
	} {
		if res := s.RunBinary(t, append([]string{"kubeconfig"}, strings.Fields(args)...)...); res.Code != 1 || res.Stdout != "" || res.Stderr != want {
			t.Errorf("%s: exit code %d, %q, %q", args, res.Code, res.Stdout, res.Stderr)
		}
	}
}
