package carotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/rotation"
)

// cluster is several servers over one API, which is a fake; their own endpoints are real, with their certificates.
type cluster struct {
	cs      kubernetes.Interface
	servers map[string]*Server
	opts    map[string]pki.Options
	names   []string
}

func newCluster(t *testing.T, all ...string) *cluster {
	t.Helper()
	c := &cluster{cs: fake.NewClientset(), servers: map[string]*Server{}, opts: map[string]pki.Options{}, names: all}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"}}
	for i, name := range all {
		opts := pki.Options{Dir: filepath.Join(t.TempDir(), "tls"), NodeName: name, NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ClusterDomain: "cluster.local"}
		if i > 0 {
			shared, err := pki.Shared(c.opts[all[0]].Dir, pki.ForServer)
			if err := errors.Join(err, pki.Place(opts.Dir, shared, pki.ForServer)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pki.Ensure(opts); err != nil {
			t.Fatal(err)
		}
		c.opts[name] = opts
		host := c.serve(t, name)
		_, text, _ := net.SplitHostPort(host)
		n, _ := strconv.Atoi(text)
		port := int32(n)
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Port: &port})
		c.start(t, name, "https://"+host)
	}
	slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}}
	if _, err := c.cs.DiscoveryV1().EndpointSlices("default").Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// start creates a server with a name, as a restarted process does.
func (c *cluster) start(t *testing.T, name, url string) {
	t.Helper()
	log, _ := logtest.NewNullLogger()
	opts := c.opts[name]
	s, err := New(Options{
		Options: rotation.Options{
			NodeName: name, Client: &rest.Config{}, Log: log,
			Servers:  func() []string { return c.names },
			Leads:    func() bool { return name == c.names[0] },
			Identity: func() (tls.Certificate, *x509.CertPool, error) { return pki.ServerClient(opts.Dir, name, time.Now()) },
		},
		Dir: opts.Dir, URL: url,
		Change: func(do func() error) error {
			if err := do(); err != nil {
				return err
			}
			_, err := pki.Ensure(opts)
			return err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Client = c.cs
	c.servers[name] = s
}

// serve is the API of a server: it reads its files for each connection, and knows clients with a certificate of a
// trusted CA.
func (c *cluster) serve(t *testing.T, name string) (host string) {
	t.Helper()
	dir := c.opts[name].Dir
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		trust, err := os.ReadFile(filepath.Join(dir, "cluster-trust.crt"))
		if err != nil {
			t.Error(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(trust)
		client := r.TLS.PeerCertificates[0]
		if _, err := client.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		who := &user.DefaultInfo{Name: client.Subject.CommonName, Groups: client.Subject.Organization}
		c.servers[name].Handler(http.NotFoundHandler()).ServeHTTP(w, r.WithContext(apirequest.WithUser(r.Context(), who)))
	}))
	api.TLS = &tls.Config{ClientAuth: tls.RequireAnyClientCert, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key"))
		return &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAnyClientCert}, err
	}}
	api.StartTLS()
	t.Cleanup(api.Close)
	return api.Listener.Addr().String()
}

// begin is what an administrator does on a server.
func (c *cluster) begin(t *testing.T, name, wanted string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	c.servers[name].Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, names.CAPath, strings.NewReader(wanted)))
	return w
}

func (c *cluster) state(t *testing.T) State {
	t.Helper()
	r, err := c.servers[c.names[0]].Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.State
}

// hurry lets the time pass that a phase lasts at least, by the clock of each server: that of the one that began it may
// be another.
func (c *cluster) hurry(t *testing.T) {
	t.Helper()
	st := c.state(t)
	for _, s := range c.servers {
		s.at, s.from = st.Rotation, time.Now().Add(-time.Hour)
	}
}

// TestRotation: two servers go through all phases; each of them may die and forget what it did at any moment. A phase
// waits for both. In the end both have the same CAs, which are new, and the API publishes them only.
func TestRotation(t *testing.T) {
	c := newCluster(t, "a", "b")
	former, err := os.ReadFile(filepath.Join(c.opts["a"].Dir, "cluster-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.cs.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: authentication}, Data: map[string]string{"client-ca-file": string(former), "requestheader-allowed-names": "[]"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if w := c.begin(t, "a", `{"grace":600}`); w.Code != http.StatusOK {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	id := c.state(t).ID
	for _, phase := range pki.Phases() {
		if st := c.state(t); st.Phase != phase || st.ID != id {
			t.Fatalf("%+v, want phase %s", st, phase)
		}
		for range 3 { // a alone gets no further
			if _, err := c.servers["a"].Step(t.Context()); err != nil {
				t.Fatalf("%s: a: %v", phase, err)
			}
		}
		if st := c.state(t); st.Phase != phase {
			t.Fatalf("phase %s began without b", st.Phase)
		}
		c.start(t, "a", c.servers["a"].opts.URL)
		if _, err := c.servers["b"].Step(t.Context()); err != nil {
			t.Fatalf("%s: b: %v", phase, err)
		}
		for name, opts := range c.opts {
			if r, err := pki.ReadRotation(opts.Dir); err != nil || *r != (pki.Rotation{ID: id, Phase: phase}) {
				t.Errorf("%s: %+v, %v, want %s", name, r, err, phase)
			}
		}
		if phase == pki.Trust {
			if _, err := c.servers["a"].Step(t.Context()); err != nil || c.state(t).Phase != phase {
				t.Fatalf("it did not wait for pods: %+v, %v", c.state(t), err)
			}
		}
		if phase == pki.Drop { // aggregated API servers still know both
			cm, err := c.cs.CoreV1().ConfigMaps("kube-system").Get(t.Context(), authentication, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			trusted, err := pki.ReadTrusted(c.opts["a"].Dir)
			if err != nil {
				t.Fatal(err)
			}
			cm.Data["client-ca-file"] += string(trusted.Cluster)
			if _, err := c.cs.CoreV1().ConfigMaps("kube-system").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		c.hurry(t)
		if _, err := c.servers["a"].Step(t.Context()); err != nil {
			t.Fatalf("%s: a: %v", phase, err)
		}
	}
	if st := c.state(t); st.Phase != done || st.Finished.IsZero() {
		t.Fatalf("%+v", st)
	}
	for _, s := range c.servers {
		if _, err := s.Step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var cas []string
	for name, opts := range c.opts {
		if r, err := pki.ReadRotation(opts.Dir); err != nil || r != nil {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
		ca, err := os.ReadFile(filepath.Join(opts.Dir, "cluster-ca.crt"))
		if err != nil {
			t.Fatal(err)
		}
		cas = append(cas, string(ca))
	}
	if cas[0] != cas[1] || cas[0] == string(former) {
		t.Errorf("the CAs are %q", cas)
	}
	cm, err := c.cs.CoreV1().ConfigMaps("kube-system").Get(t.Context(), authentication, metav1.GetOptions{})
	if err != nil || cm.Data["client-ca-file"] != cas[0] || cm.Data["requestheader-allowed-names"] != "[]" {
		t.Errorf("%v, %v", cm.Data, err)
	}
	for _, object := range objects(t, c.cs) {
		if strings.Contains(object, "PRIVATE KEY") {
			t.Errorf("a key is in the API: %s", object)
		}
	}
}

// TestMissedEnd: a server that was ended before it could end its part of a rotation takes part in the next one.
func TestMissedEnd(t *testing.T) {
	c := newCluster(t, "a", "b")
	_, err := c.cs.CoreV1().ConfigMaps("kube-system").Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: authentication},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begin := func() string {
		if w := c.begin(t, "a", `{"grace":600}`); w.Code != http.StatusOK {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		return c.state(t).ID
	}
	step := func(name string) {
		if _, err := c.servers[name].Step(t.Context()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	first := begin()
	for range pki.Phases() {
		step("a")
		step("b")
		c.hurry(t)
		step("a")
	}
	step("a") // ends its part
	if r, err := pki.ReadRotation(c.opts["b"].Dir); err != nil || *r != (pki.Rotation{ID: first, Phase: pki.Drop}) || c.state(t).Phase != done {
		t.Fatalf("b: %+v, %v; %+v", r, err, c.state(t))
	}
	second := begin()
	step("a")
	step("b")
	if r, err := pki.ReadRotation(c.opts["b"].Dir); err != nil || *r != (pki.Rotation{ID: second, Phase: pki.Trust}) {
		t.Errorf("b: %+v, %v", r, err)
	}
}

// objects are all ConfigMaps.
func objects(t *testing.T, cs kubernetes.Interface) (all []string) {
	t.Helper()
	list, err := cs.CoreV1().ConfigMaps("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cm := range list.Items {
		text, err := json.Marshal(cm)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, string(text))
	}
	return all
}

// TestBegin: a second rotate-ca goes on with the first, with its own grace and force; one whose state was deleted goes
// on with the CAs that are there, and one whose CAs are lost begins with others.
func TestBegin(t *testing.T) {
	c := newCluster(t, "a", "b")
	for _, wrong := range []string{"", "{", `{"grace":-1}`} {
		if w := c.begin(t, "a", wrong); w.Code != http.StatusConflict {
			t.Errorf("%q: %d %s", wrong, w.Code, w.Body)
		}
	}
	if st := c.state(t); st.Active() {
		t.Fatalf("%+v", st)
	}
	c.begin(t, "a", `{"grace":600}`)
	first := c.state(t)
	c.begin(t, "a", `{"grace":0,"force":true}`)
	if st := c.state(t); st.ID != first.ID || st.Phase != pki.Trust || st.Grace != 0 || !st.Force || !st.Since.Equal(first.Since) {
		t.Errorf("%+v after %+v", st, first)
	}
	if _, err := c.servers["a"].Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.cs.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), names.CARotation, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.servers["a"].Step(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.begin(t, "a", `{"grace":0}`)
	if st := c.state(t); st.ID != first.ID || st.Phase != pki.Trust {
		t.Errorf("%+v, want the CAs of %s", st, first.ID)
	}
	// a, which alone has the new CAs, is removed.
	c.names = []string{"b"}
	slice, err := c.cs.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Ports = slice.Ports[1:]
	if _, err := c.cs.DiscoveryV1().EndpointSlices("default").Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.servers["b"].Step(t.Context()); err == nil || !strings.Contains(err.Error(), "get the new CAs from another server") {
		t.Errorf("error %v", err)
	}
	c.begin(t, "b", `{"grace":0}`)
	if st := c.state(t); st.ID == first.ID || st.Phase != pki.Trust {
		t.Errorf("%+v after %+v", st, first)
	}
}

// TestKeysForServersOnly: only a server of the cluster gets the new CAs.
func TestKeysForServersOnly(t *testing.T) {
	c := newCluster(t, "a", "b")
	c.begin(t, "a", `{"grace":600}`)
	id := c.state(t).ID
	for _, who := range []*user.DefaultInfo{
		{Name: "kubelith-admin", Groups: []string{names.Admins}},
		{Name: names.ServerUserPrefix + "removed", Groups: []string{names.Servers}},
		{Name: "system:node:b", Groups: []string{names.Servers}},
		{Name: names.ServerUserPrefix + "b"},
	} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, names.CAKeyPath, strings.NewReader(`{"key":"`+id+`","recipient":"age1"}`))
		c.servers["a"].Handler(http.NotFoundHandler()).ServeHTTP(w, r.WithContext(apirequest.WithUser(context.Background(), who)))
		if w.Code == http.StatusOK || strings.Contains(w.Body.String(), "sealed") {
			t.Errorf("%s: %d %s", who.Name, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	c.servers["a"].Handler(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, names.CATrustPath, nil))
	var trusted pki.Trusted
	if err := json.Unmarshal(w.Body.Bytes(), &trusted); err != nil || trusted.Rotation.ID != id {
		t.Errorf("%s, %v", w.Body, err)
	}
	if cas, err := certutil.ParseCertsPEM(trusted.Cluster); err != nil || len(cas) != 2 {
		t.Errorf("an agent learns %d CAs, %v", len(cas), err)
	}
	if strings.Contains(string(slices.Concat(trusted.Cluster, trusted.Signing, trusted.KubeletSigning)), "PRIVATE") {
		t.Error("an agent gets a key")
	}
}
