package encryption

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
	"kubelith.io/kubelith/base/sealed"
)

func newServer(t *testing.T, name string, keys ...string) *Server {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	s, err := New(Options{
		Options: rotation.Options{
			NodeName: name, Client: &rest.Config{}, Log: log,
			Servers: func() []string { return []string{"a", "b"} }, Leads: func() bool { return false },
		},
		File: filepath.Join(t.TempDir(), "encryption.yaml"), Loaded: func(string) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := pki.WriteEncryption(s.opts.File, keysOf(keys...)); err != nil {
		t.Fatal(err)
	}
	return s
}

// as lets requests come from a user.
func as(who user.Info, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), who)))
	})
}

// TestKeyOfAnotherServer: only a server gets a key, encrypted.
func TestKeyOfAnotherServer(t *testing.T) {
	s := newServer(t, "a", "old", "new")
	var who user.DefaultInfo
	var body bytes.Buffer
	api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		recorded := httptest.NewRecorder()
		as(&who, s.Handler(http.NotFoundHandler())).ServeHTTP(recorded, r)
		body.Reset()
		body.Write(recorded.Body.Bytes())
		w.WriteHeader(recorded.Code)
		_, _ = w.Write(recorded.Body.Bytes())
	}))
	defer api.Close()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: api.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}}}
	address := strings.TrimPrefix(api.URL, "https://")

	who = user.DefaultInfo{Name: names.ServerUserPrefix + "b", Groups: []string{names.Servers}}
	ask := func(key string) (got pki.EncryptionKey, err error) {
		err = sealed.Ask(t.Context(), client, address, names.EncryptionKeyPath, key, &got)
		return got, err
	}
	got, err := ask("new")
	if err != nil || got != keysOf("new")[0] {
		t.Errorf("%v, %v", got, err)
	}
	if text := body.String(); strings.Contains(text, "of new") || strings.Contains(text, "secret") {
		t.Errorf("the key is readable: %s", text)
	}
	if _, err := ask("other"); err == nil || !strings.Contains(err.Error(), "server a does not have the key other") {
		t.Errorf("a key that it does not have: %v", err)
	}
	for _, other := range []user.DefaultInfo{
		{Name: "kubelith-admin", Groups: []string{names.Admins}},
		{Name: names.ServerUserPrefix + "removed", Groups: []string{names.Servers}},
		{Name: "system:node:b", Groups: []string{names.Servers}},
		{Name: names.ServerUserPrefix + "b"},
	} {
		who = other
		if got, err := ask("new"); err == nil {
			t.Errorf("%v got %v", other, got)
		}
	}
	who = user.DefaultInfo{Name: names.ServerUserPrefix + "b", Groups: []string{names.Servers}}
	for _, wrong := range []string{"", "{", `{"key":"new","recipient":"age1"}`, `{"key":"new"}`} {
		r, err := client.Post(api.URL+names.EncryptionKeyPath, "application/json", strings.NewReader(wrong))
		if err != nil {
			t.Fatal(err)
		}
		r.Body.Close()
		if r.StatusCode != http.StatusConflict {
			t.Errorf("%q: %s", wrong, r.Status)
		}
	}
}

// post is what an administrator does to begin a rotation.
func post(ctx context.Context, s *Server) (answer string) {
	w := httptest.NewRecorder()
	s.Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, names.EncryptionPath, nil).WithContext(ctx))
	return w.Body.String()
}

// TestBegin: the key is in the file before the phase is stored, a second rotation does not begin beside the first, and
// one whose only key is lost gives way.
func TestBegin(t *testing.T) {
	s := newServer(t, "a", "old")
	cs := fake.NewClientset()
	s.Client = cs
	begin := func() { // its view needs an etcd, which is not there
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if answer := post(ctx, s); !strings.Contains(answer, "etcd") {
			t.Fatal(answer)
		}
	}
	s.opts.Socket = filepath.Join(t.TempDir(), "none.sock")
	begin()
	first, err := s.Read(t.Context())
	keys, keysErr := pki.ReadEncryption(s.opts.File)
	if err != nil || keysErr != nil || first.State.Phase != phaseDistribute || len(keys) != 2 || keys[0].Name != "old" || keys[1].Name != first.State.Key {
		t.Fatalf("%+v, %v, %v", first.State, namesOf(keys), err)
	}
	cm, err := cs.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(t.Context(), names.EncryptionState, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if text, _ := json.Marshal(cm); strings.Contains(string(text), keys[1].Secret) {
		t.Errorf("the key is in the API: %s", text)
	}
	begin()
	if again, _ := s.Read(t.Context()); again.State != first.State {
		t.Errorf("a second rotation: %+v", again.State)
	}
	if err := pki.WriteEncryption(s.opts.File, keysOf("old")); err != nil {
		t.Fatal(err)
	}
	begin()
	if other, _ := s.Read(t.Context()); other.State.Key == first.State.Key || other.State.Phase != phaseDistribute {
		t.Errorf("after the key was lost: %+v", other.State)
	}
}

// TestRefused: a file that was changed by hand, or is not used, is left alone.
func TestRefused(t *testing.T) {
	s := newServer(t, "a", "old")
	s.Client = fake.NewClientset()
	s.opts.Foreign = "an argument"
	if answer := post(t.Context(), s); !strings.Contains(answer, `"message":"an argument"`) {
		t.Error(answer)
	}
	s.opts.Foreign = ""
	text, err := json.Marshal(Report{Problem: "it was changed by hand"})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: names.EncryptionState}, Data: map[string]string{rotation.ReportPrefix + "b": string(text)},
	})
	if answer := post(t.Context(), s); !strings.Contains(answer, "server b cannot take a new key: it was changed by hand") {
		t.Error(answer)
	}
	if keys, err := pki.ReadEncryption(s.opts.File); err != nil || len(keys) != 1 {
		t.Errorf("the file has %v, %v", keys, err)
	}
}
