package apiserver

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	bootstrapauthn "k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// tokens is upstream's authenticator of bootstrap tokens over these Secrets, with ours around it.
func tokens(t *testing.T, limit *rate.Limiter, secrets ...*corev1.Secret) (*refusedTokens, *test.Hook) {
	t.Helper()
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, s := range secrets {
		if err := index.Add(s); err != nil {
			t.Fatal(err)
		}
	}
	lister := corelisters.NewSecretLister(index).Secrets("kube-system")
	log, hook := test.NewNullLogger()
	return &refusedTokens{
		Request: bearertoken.New(bootstrapauthn.NewTokenAuthenticator(lister)),
		secrets: func() corelisters.SecretNamespaceLister { return lister },
		log:     log, limit: limit,
	}, hook
}

func showing(header string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "https://apiserver.test/version", nil)
	r.RemoteAddr = "192.0.2.8:1234"
	if header != "" {
		r.Header.Set("Authorization", header)
	}
	return r
}

func tokenSecret(change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abc123"}, Type: "bootstrap.kubernetes.io/token",
		Data: map[string][]byte{"token-id": []byte("abc123"), "token-secret": []byte("0123456789abcdef"), "usage-bootstrap-authentication": []byte("true")},
	}
	change(s)
	return s
}

// TestRefusedTokens: why upstream does not accept a token is one line in the log, without the secret.
func TestRefusedTokens(t *testing.T) {
	same := func(*corev1.Secret) {}
	const good = "Bearer abc123.0123456789abcdef"
	for name, tc := range map[string]struct {
		change func(*corev1.Secret)
		header string
		want   string // of the log; empty: nothing
		ok     bool
	}{
		"accepted":           {same, good, "", true},
		"no such id":         {same, "Bearer zzz999.0123456789abcdef", "refused token zzz999 from 192.0.2.8:1234: it does not exist", false},
		"secret":             {same, "Bearer abc123.fedcba9876543210", "refused token abc123 from 192.0.2.8:1234: its secret is wrong", false},
		"expired":            {func(s *corev1.Secret) { s.Data["expiration"] = []byte("2020-01-02T03:04:05Z") }, good, "it expired at 2020-01-02T03:04:05Z", false},
		"deleted":            {func(s *corev1.Secret) { s.DeletionTimestamp = &metav1.Time{Time: time.Now()} }, good, "it is being deleted", false},
		"usage":              {func(s *corev1.Secret) { delete(s.Data, "usage-bootstrap-authentication") }, good, "it was created without the usage authentication", false},
		"type":               {func(s *corev1.Secret) { s.Type = "Opaque" }, good, "its Secret has the type Opaque", false},
		"id":                 {func(s *corev1.Secret) { s.Data["token-id"] = []byte("xyz123") }, good, "its Secret names another id", false},
		"group":              {func(s *corev1.Secret) { s.Data["auth-extra-groups"] = []byte("system:masters") }, good, `bootstrap group "system:masters" is invalid`, false},
		"nothing":            {same, "", "", false},
		"another token":      {same, "Bearer eyJhbGciOi.J9.x", "", false},
		"another scheme":     {same, "Basic abc123.0123456789abcdef", "", false},
		"more than a secret": {same, "Bearer abc123.0123456789abcdef0", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			a, hook := tokens(t, rate.NewLimiter(refusals, refusals), tokenSecret(tc.change))
			_, ok, err := a.AuthenticateRequest(showing(tc.header))
			if ok != tc.ok || ok && err != nil {
				t.Fatalf("accepted %v, %v", ok, err)
			}
			lines := hook.AllEntries()
			if tc.want == "" {
				if len(lines) != 0 {
					t.Errorf("logged %q", lines[0].Message)
				}
				return
			}
			if len(lines) != 1 || lines[0].Level != logrus.WarnLevel || !strings.Contains(lines[0].Message, tc.want) || strings.Contains(lines[0].Message, "\n") {
				t.Fatalf("logged %v, want %q", lines, tc.want)
			}
			if _, secret, _ := strings.Cut(tc.header, "."); strings.Contains(lines[0].Message, secret) {
				t.Errorf("the secret is in the log: %s", lines[0].Message)
			}
		})
	}
}

// Anybody can show tokens: they do not fill the log.
func TestRefusedTokensAreLimited(t *testing.T) {
	a, hook := tokens(t, rate.NewLimiter(0, 3))
	for range 20 {
		if _, ok, _ := a.AuthenticateRequest(showing("Bearer abc123.0123456789abcdef")); ok {
			t.Fatal("accepted")
		}
	}
	if n := len(hook.AllEntries()); n != 3 {
		t.Errorf("%d lines, want 3", n)
	}
}

// TestTurnedAway: a report of a machine that refuses this server is logged, in our words and not too often; the machine
// gets no more access than others.
func TestTurnedAway(t *testing.T) {
	for path, want := range map[string]string{
		"/kubelith/refused/ca":      "a machine at 192.0.2.8:1234 reports that it cannot join: its token is for a cluster with another CA",
		"/kubelith/refused/clock":   "a machine at 192.0.2.8:1234 reports that it cannot join: its clock and the server's are more than five minutes apart",
		"/kubelith/refused/version": "a machine at 192.0.2.8:1234 reports that it cannot join: its Kubernetes is newer than the server's",
		"/kubelith/refused/":        "",
		"/kubelith/refused/ca/":     "",
		"/kubelith/refused/%0aroot": "",
		"/version":                  "",
	} {
		a, hook := tokens(t, rate.NewLimiter(0, 3), tokenSecret(func(*corev1.Secret) {}))
		request := httptest.NewRequest(http.MethodGet, "https://apiserver.test"+path+"?reason=x", nil)
		request.RemoteAddr = "192.0.2.8:1234"
		request.Header.Set("User-Agent", "x")
		for range 20 {
			if _, ok, err := a.AuthenticateRequest(request); ok || err != nil {
				t.Fatalf("%s: accepted %v, %v", path, ok, err)
			}
		}
		lines := hook.AllEntries()
		if want == "" && len(lines) == 0 {
			continue
		}
		if len(lines) != 3 || want == "" || lines[0].Message != want || len(lines[0].Data) > 0 {
			t.Errorf("%s: logged %v, want 3 times %q", path, lines, want)
		}
	}
}

// TestTokenReview: its token is authenticated as a request that has only a header.
func TestTokenReview(t *testing.T) {
	a, _ := tokens(t, rate.NewLimiter(0, 3), tokenSecret(func(*corev1.Secret) {}))
	request := &http.Request{Header: http.Header{"Authorization": {"Bearer of.no.one"}}}
	if _, ok, _ := a.AuthenticateRequest(request); ok {
		t.Error("accepted")
	}
}
