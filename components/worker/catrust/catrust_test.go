package catrust

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
)

// machine has the certificates of the node, as files of a server's directory that the rotation also renews.
type machine struct {
	t     *testing.T
	path  string // of the certificate
	cert  *x509.Certificate
	fails error
	made  int
	cas   []byte
}

func (m *machine) read() *x509.Certificate {
	m.t.Helper()
	certs, err := certutil.CertsFromFile(m.path)
	if err != nil {
		m.t.Fatal(err)
	}
	return certs[0]
}

func (m *machine) Certificate() *x509.Certificate { return m.cert }

func (m *machine) Renew(context.Context) error {
	if m.fails == nil {
		m.made++
		m.cert = m.read()
	}
	return m.fails
}

func (m *machine) Trust(cas []byte) error {
	m.cas = cas
	return nil
}

// api answers as the server does, and keeps the annotation.
type api struct {
	mu         sync.Mutex
	dir        string
	annotation string
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case r.URL.Path == names.CATrustPath:
		trusted, err := pki.ReadTrusted(a.dir)
		if err != nil {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(trusted)
	case r.Method == http.MethodPatch && r.URL.Path == "/api/v1/nodes/n":
		var node corev1.Node
		if json.NewDecoder(r.Body).Decode(&node) == nil {
			a.annotation = node.Annotations[names.CAAnnotation]
		}
		_ = json.NewEncoder(w).Encode(&node)
	default:
		http.NotFound(w, r)
	}
}

// TestFollow: an agent trusts what the server trusts, has its certificates signed by the new CAs when they sign, once,
// and reports each phase when it has done that.
func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	ensure := func() {
		t.Helper()
		if _, err := pki.Ensure(pki.Options{Dir: dir, NodeName: "n", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ClusterDomain: "cluster.local"}); err != nil {
			t.Fatal(err)
		}
	}
	ensure()
	server := &api{dir: dir}
	http := httptest.NewServer(server)
	defer http.Close()
	log, _ := logtest.NewNullLogger()
	connection, kubelet := &machine{t: t, path: filepath.Join(dir, "admin.crt")}, &machine{t: t, path: filepath.Join(dir, "kubelet-serving.crt")}
	connection.cert, kubelet.cert = connection.read(), kubelet.read()
	a, err := New(Options{NodeName: "n", Connection: connection, Kubelet: kubelet, Client: &rest.Config{Host: http.URL}, Log: log})
	if err != nil {
		t.Fatal(err)
	}
	look := func(phase pki.Phase) bool { return a.look(t.Context(), pki.Rotation{ID: "x", Phase: phase}) == 0 }

	if look(pki.Trust) || connection.cas != nil {
		t.Error("it followed a rotation that the server has not begun")
	}
	next, err := pki.NewCAs("x", time.Now())
	if err := errors.Join(err, pki.BeginRotation(dir, "x", next)); err != nil {
		t.Fatal(err)
	}
	for i, phase := range pki.Phases() {
		if i > 0 {
			if look(phase) {
				t.Errorf("it was in phase %s before the server", phase)
			}
			if err := pki.AdvanceRotation(dir); err != nil {
				t.Fatal(err)
			}
		}
		ensure()
		if phase == pki.Sign {
			kubelet.fails = errors.New("no server signs")
			if look(phase) || server.annotation != "x trust" || connection.made != 1 {
				t.Errorf("without the kubelet's certificate it reported %q", server.annotation)
			}
			kubelet.fails = nil
		}
		if !look(phase) || server.annotation != "x "+string(phase) {
			t.Errorf("phase %s: it reported %q", phase, server.annotation)
		}
		trust, err := os.ReadFile(filepath.Join(dir, "cluster-trust.crt"))
		if err != nil || string(connection.cas) != string(trust) {
			t.Errorf("phase %s: it does not trust what the server trusts, %v", phase, err)
		}
		if want := min(i, 1); connection.made != want || kubelet.made != want {
			t.Errorf("phase %s: certificates were renewed %d and %d times", phase, connection.made, kubelet.made)
		}
	}
	if !look(pki.Drop) || !look("done") {
		t.Error("it goes on after the end")
	}
	// A CA that signs again with the former key is found out.
	connection.cert, a.told = &x509.Certificate{}, ""
	connection.path = filepath.Join(dir, "peer.crt")
	if _, err := a.step(t.Context(), "x"); err == nil || !strings.Contains(err.Error(), "signed by the former CA again") {
		t.Errorf("error %v", err)
	}
}

// TestWanted: a rotation that is done, or cannot be read, is not followed.
func TestWanted(t *testing.T) {
	for text, want := range map[string]pki.Rotation{
		`{"id":"x","phase":"sign","since":"2030-01-01T00:00:00Z","grace":600}`: {ID: "x", Phase: pki.Sign},
		`{"id":"x","phase":"done"}`: {}, "": {}, "?": {},
	} {
		if got := wanted(&corev1.ConfigMap{Data: map[string]string{"state": text}}); got != want {
			t.Errorf("%s: %+v", text, got)
		}
	}
}
