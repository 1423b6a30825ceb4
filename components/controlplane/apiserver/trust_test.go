package apiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/components/controlplane/apiserver/passwordfile"
)

// claimed is an authenticator of the network: it trusts the header User.
func claimed(req *http.Request) (*authenticator.Response, bool, error) {
	switch name := req.Header.Get("User"); name {
	case "":
		return nil, false, nil
	case "wrong":
		return nil, false, errors.New("wrong credentials")
	default:
		return &authenticator.Response{User: &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}}, true, nil
	}
}

// trusted is a handler with the authenticator and the authorizer that trustProcess builds from configured ones. It
// answers 401, 403 or 200, and the caller's name.
func trusted(t *testing.T, c *client.InProcess, configured authorizer.Authorizer, anonymousHealth bool) http.HandlerFunc {
	t.Helper()
	var config genericapiserver.Config
	config.Authentication.Authenticator = authenticator.RequestFunc(claimed)
	config.Authorization.Authorizer = configured
	s := &Server{opts: Options{Client: c}, upstream: options.NewServerRunOptions(), anonymousHealth: anonymousHealth, removals: &removals{}}
	if err := s.trustProcess(&config); err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		who, ok, err := config.Authentication.Authenticator.AuthenticateRequest(r)
		if err != nil || !ok {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		decision, _, err := config.Authorization.Authorizer.Authorize(r.Context(), authorizer.AttributesRecord{User: who.User, Path: r.URL.Path, Verb: "get"})
		if err != nil || decision != authorizer.DecisionAllow {
			w.WriteHeader(http.StatusForbidden)
		}
		io.WriteString(w, who.User.GetName())
	}
}

func answer(t *testing.T, c *http.Client, url, claim string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if claim != "" {
		req.Header.Set("User", claim)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}

// TestTrustInMemory: an identity of the process is authenticated under its name, whatever else the request claims, and
// has the rights that the configured authorizer gives it. The apiserver's own is the one exception.
func TestTrustInMemory(t *testing.T) {
	const url = "https://apiserver.test:6443"
	for _, configured := range []struct {
		name       string
		authorizer authorizer.Authorizer
		code       int // of all but the loopback identity
	}{
		{"no rights", authorizerfactory.NewAlwaysDenyAuthorizer(), 403},
		{"no opinion", authorizer.AuthorizerFunc(noOpinion), 403},
		{"everybody has rights", authorizerfactory.NewAlwaysAllowAuthorizer(), 200},
	} {
		t.Run(configured.name, func(t *testing.T) {
			c := client.New(url, logrus.StandardLogger())
			c.Open(trusted(t, c, configured.authorizer, true))
			defer c.Close()
			for _, identity := range []struct {
				config *rest.Config
				want   string
			}{
				{c.Config(client.APIServer), "200 " + client.APIServer},
				{c.Config(client.ControllerManager), fmt.Sprint(configured.code, " ", client.ControllerManager)},
				{c.Config(client.Scheduler), fmt.Sprint(configured.code, " ", client.Scheduler)},
				{c.Config(client.Proxy), fmt.Sprint(configured.code, " ", client.Proxy)},
				{c.Config(client.DNS), fmt.Sprint(configured.code, " ", client.DNS)},
				{c.Config(client.Token), fmt.Sprint(configured.code, " ", client.Token)},
				{c.Config(client.Approver), fmt.Sprint(configured.code, " ", client.Approver)},
				{c.NodeConfig("n"), fmt.Sprint(configured.code, " system:node:n")},
				{c.ServiceAccountConfig("kube-system", "job-controller"), fmt.Sprint(configured.code, " system:serviceaccount:kube-system:job-controller")},
				// As upstream's loopback identity would be: neither the group nor a name that looks alike is trusted.
				{c.Config("somebody", user.SystemPrivilegedGroup), fmt.Sprint(configured.code, " somebody")},
				{c.Config(client.APIServer + "2"), fmt.Sprint(configured.code, " ", client.APIServer, "2")},
			} {
				for _, claim := range []string{"", client.APIServer, "wrong"} {
					if got := answer(t, &http.Client{Transport: identity.config.Transport}, url+"/api", claim); got != identity.want {
						t.Errorf("%s, claiming %q: got %s, want %s", identity.config.UserAgent, claim, got, identity.want)
					}
				}
			}
		})
	}
}

func noOpinion(_ context.Context, _ authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
}

// TestTrustNetwork: a name gives no rights to a client on the network, not even the apiserver's own.
func TestTrustNetwork(t *testing.T) {
	for _, c := range []struct {
		name, path, claim string
		anonymousHealth   bool
		want              string
	}{
		{"apiserver's name", "/api", client.APIServer, true, "403 " + client.APIServer},
		{"somebody", "/api", "somebody", true, "403 somebody"},
		{"anonymous, health", "/livez", "", true, "403 system:anonymous"}, // RBAC allows it, which the test's authorizer does not
		{"anonymous, ready", "/readyz", "", true, "403 system:anonymous"},
		{"anonymous, health of old", "/healthz", "", true, "403 system:anonymous"},
		{"anonymous, how to join", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "", true, "403 system:anonymous"},
		{"anonymous, beside it", "/api/v1/namespaces/kube-public/configmaps/other", "", true, "401 "},
		{"anonymous, all of them", "/api/v1/namespaces/kube-public/configmaps", "", true, "401 "},
		{"anonymous, below it", "/api/v1/namespaces/kube-public/configmaps/cluster-info/x", "", true, "401 "},
		{"anonymous, the user's own anonymous-auth, how to join", "/api/v1/namespaces/kube-public/configmaps/cluster-info", "", false, "401 "},
		{"anonymous, one check", "/livez/etcd", "", true, "401 "},
		{"anonymous, API", "/api", "", true, "401 "},
		{"anonymous, root", "/", "", true, "401 "},
		{"anonymous, the user's own anonymous-auth", "/livez", "", false, "401 "},
		{"wrong credentials do not become anonymous", "/livez", "wrong", true, "401 "},
	} {
		t.Run(c.name, func(t *testing.T) {
			inProcess := client.New("https://apiserver.test:6443", logrus.StandardLogger())
			defer inProcess.Close()
			s := httptest.NewServer(trusted(t, inProcess, authorizerfactory.NewAlwaysDenyAuthorizer(), c.anonymousHealth))
			defer s.Close()
			if got := answer(t, s.Client(), s.URL+c.path, c.claim); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// TestTrustReview: the token of a TokenReview comes as a request without a URL. An empty token belongs to no user, not
// even to the anonymous one that may read the health.
func TestTrustReview(t *testing.T) {
	for _, token := range []string{"", " ", " x", "x"} {
		for _, anonymousHealth := range []bool{true, false} {
			inProcess := client.New("https://apiserver.test:6443", logrus.StandardLogger())
			var config genericapiserver.Config
			config.Authentication.Authenticator = authenticator.RequestFunc(claimed)
			config.Authorization.Authorizer = authorizerfactory.NewAlwaysDenyAuthorizer()
			s := &Server{opts: Options{Client: inProcess}, upstream: options.NewServerRunOptions(), anonymousHealth: anonymousHealth, removals: &removals{}}
			if err := s.trustProcess(&config); err != nil {
				t.Fatal(err)
			}
			request := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
			if who, ok, err := config.Authentication.Authenticator.AuthenticateRequest(request); ok || err != nil {
				t.Errorf("%q is the token of %v, %v", token, who, err)
			}
			if request.URL != nil {
				t.Error("the caller's request was changed")
			}
			inProcess.Close()
		}
	}
}

// TestTrustPasswords: a user of the password file is authenticated, also where upstream's authenticators would take the
// request for another's. A wrong password is neither that of another user nor anonymous.
func TestTrustPasswords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "users.csv")
	if err := os.WriteFile(path, []byte("secret,alice,1,\"team,ops\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	passwords, err := passwordfile.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	inProcess := client.New("https://apiserver.test:6443", logrus.StandardLogger())
	defer inProcess.Close()
	var config genericapiserver.Config
	config.Authentication.Authenticator = authenticator.RequestFunc(claimed)
	config.Authorization.Authorizer = authorizerfactory.NewAlwaysDenyAuthorizer()
	s := &Server{opts: Options{Client: inProcess}, upstream: options.NewServerRunOptions(), anonymousHealth: true, removals: &removals{}, passwords: passwords}
	if err := s.trustProcess(&config); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, password, claim, want string }{
		{"alice", "secret", "", "alice 1 [team ops system:authenticated]"},
		{"alice", "secret", "somebody", "alice 1 [team ops system:authenticated]"},
		{"alice", "Secret", "", "refused: wrong user name or password from 192.0.2.1"},
		{"alice", "Secret", "somebody", "refused: wrong user name or password from 192.0.2.1"},
		{"bob", "secret", "", "refused: wrong user name or password from 192.0.2.1"},
		{"", "", "somebody", "somebody  [system:authenticated]"},
		{"", "", "", "system:anonymous  [system:unauthenticated]"},
	} {
		req := httptest.NewRequest(http.MethodGet, "/livez", nil) // from 192.0.2.1
		if tc.name != "" {
			req.SetBasicAuth(tc.name, tc.password)
		}
		req.Header.Set("User", tc.claim)
		who, ok, err := config.Authentication.Authenticator.AuthenticateRequest(req)
		got := fmt.Sprint("refused: ", err)
		if ok {
			got = fmt.Sprint(who.User.GetName(), " ", who.User.GetUID(), " ", who.User.GetGroups())
		}
		if got != tc.want {
			t.Errorf("%+v: %s", tc, got)
		}
	}
}
