package join

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/cluster-bootstrap/token/jws"

	"kubelith.io/kubelith/base/jointoken"
	"kubelith.io/kubelith/base/names"
)

// What client-go and Go keep for the rest of a process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		// It sleeps until the next rotation whatever happens.
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/certificate.(*manager).run"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/util/certificate.(*manager).run.func2"))
}

// authority is a CA.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

// sign creates a certificate in PEM; a serving one has the name of every API server.
func (a *authority) sign(t *testing.T, public crypto.PublicKey, subject pkix.Name, until time.Time, dns ...string) []byte {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: subject, DNSNames: dns, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}, NotBefore: time.Now().Add(-time.Hour), NotAfter: until}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a *authority) pair(t *testing.T, subject pkix.Name, until time.Time, dns ...string) *tls.Certificate {
	t.Helper()
	key := newKey(t)
	cert := a.sign(t, key.Public(), subject, until, dns...)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return &pair
}

// api is what an agent sees of a server: a stand-in for the API over real TLS and HTTP/2.
type api struct {
	*httptest.Server
	t     *testing.T
	ca    *authority
	token jointoken.Token

	mu       sync.Mutex
	version  string
	skew     time.Duration                // of its clock
	info     func(data map[string]string) // changes what cluster-info has
	infoCode int
	settings string
	life     time.Duration // of certificates
	deny     string        // why requests for certificates are denied
	silent   bool          // they are not answered
	refuse   bool          // every token
	removed  *big.Int      // the serial number of a certificate that the server refuses
	seen     []string      // requests with their identity: "bearer|cn PATH"
	csrs     map[string]*certificatesv1.CertificateSigningRequest
	events   chan metav1.WatchEvent // of the watch of EndpointSlices
}

func newAPI(t *testing.T, ca *authority) *api {
	t.Helper()
	return newAPIAt(t, ca, "127.0.0.1:0")
}

func newAPIAt(t *testing.T, ca *authority, address string) *api {
	t.Helper()
	a := &api{t: t, ca: ca, version: "v1.37.1", settings: `{"one": 1}`, life: time.Hour, infoCode: http.StatusOK,
		info: func(map[string]string) {}, csrs: map[string]*certificatesv1.CertificateSigningRequest{}, events: make(chan metav1.WatchEvent, 10),
		token: jointoken.Token{CAHash: jointoken.SPKIHash(ca.cert), ID: "abc123", Secret: "0123456789abcdef"}}
	a.Server = httptest.NewUnstartedServer(a)
	a.Listener.Close()
	var err error
	if a.Listener, err = net.Listen("tcp", address); err != nil {
		t.Fatal(err)
	}
	clients := x509.NewCertPool()
	clients.AddCert(ca.cert)
	a.TLS = &tls.Config{Certificates: []tls.Certificate{*ca.pair(t, pkix.Name{CommonName: "kube-apiserver"}, time.Now().Add(time.Hour), serverName)},
		ClientCAs: clients, ClientAuth: tls.VerifyClientCertIfGiven}
	a.EnableHTTP2 = true
	a.Config.ErrorLog = log.New(io.Discard, "", 0)
	a.StartTLS()
	t.Cleanup(func() { a.CloseClientConnections(); a.Close() })
	return a
}

func (a *api) address() string { return a.Listener.Addr().String() }

// asked are the requests so far.
func (a *api) requests() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.seen)
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := ""
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		who = bearer
	} else if len(r.TLS.PeerCertificates) > 0 {
		who = r.TLS.PeerCertificates[0].Subject.CommonName
	}
	a.mu.Lock()
	a.seen = append(a.seen, who+" "+r.Method+" "+r.URL.Path)
	skew, code := a.skew, a.infoCode
	removed := a.removed != nil && len(r.TLS.PeerCertificates) > 0 && r.TLS.PeerCertificates[0].SerialNumber.Cmp(a.removed) == 0
	a.mu.Unlock()
	if r.ProtoMajor != 2 && r.URL.Path != jointoken.ClusterInfoPath && !strings.HasPrefix(r.URL.Path, "/kubelith/") {
		a.t.Errorf("%s came over %s: watches need HTTP/2, with its pings", r.URL.Path, r.Proto)
	}
	w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
	if r.URL.Path == jointoken.ClusterInfoPath {
		if code != http.StatusOK {
			w.WriteHeader(code)
			return
		}
		a.answer(w, a.clusterInfo())
		return
	}
	if (who != a.token.Bearer() || a.refuse) && !strings.HasPrefix(who, names.NodeUserPrefix) || removed {
		w.WriteHeader(http.StatusUnauthorized)
		a.answer(w, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonUnauthorized, Code: http.StatusUnauthorized})
		return
	}
	a.authenticated(w, r)
}

func (a *api) authenticated(w http.ResponseWriter, r *http.Request) {
	const csrs = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch path := r.URL.Path; {
	case path == "/version":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answer(w, version.Info{GitVersion: a.version})
	case path == "/api/v1/namespaces/ns/configmaps/settings":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answer(w, a.settingsMap())
	case path == "/api/v1/namespaces/ns/configmaps" && r.URL.Query().Get("watch") != "":
		a.stream(w, r, nil)
	case path == "/api/v1/namespaces/ns/configmaps":
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answer(w, corev1.ConfigMapList{TypeMeta: metav1.TypeMeta{Kind: "ConfigMapList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}, Items: []corev1.ConfigMap{a.settingsMap()}})
	case path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices" && r.URL.Query().Get("watch") != "":
		a.stream(w, r, a.events)
	case path == "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices":
		a.answer(w, map[string]any{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "metadata": map[string]string{"resourceVersion": "1"}, "items": []any{}})
	case path == csrs && r.Method == http.MethodPost:
		a.createCSR(w, r)
	case path == csrs && r.URL.Query().Get("watch") != "":
		a.stream(w, r, nil)
	case path == csrs:
		a.mu.Lock()
		defer a.mu.Unlock()
		list := certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{Kind: "CertificateSigningRequestList", APIVersion: "certificates.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		_, name, _ := strings.Cut(r.URL.Query().Get("fieldSelector"), "=")
		if c, ok := a.csrs[name]; ok {
			list.Items = append(list.Items, *c)
		}
		a.answer(w, list)
	case strings.HasPrefix(path, csrs+"/"):
		a.mu.Lock()
		defer a.mu.Unlock()
		a.answer(w, a.csrs[filepath.Base(path)])
	default:
		a.t.Errorf("unexpected request %s %s", r.Method, path)
		w.WriteHeader(http.StatusNotFound)
	}
}

func (a *api) answer(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(object)
}

// stream is a watch that ends with the request.
func (a *api) stream(w http.ResponseWriter, r *http.Request, events <-chan metav1.WatchEvent) {
	if r.URL.Query().Get("sendInitialEvents") == "true" { // a server may be without it
		w.WriteHeader(http.StatusUnprocessableEntity)
		a.answer(w, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity})
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	w.(http.Flusher).Flush()
	for {
		select {
		case e := <-events:
			_ = json.NewEncoder(w).Encode(e)
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

func (a *api) clusterInfo() corev1.ConfigMap {
	kubeconfig, err := clientcmd.Write(clientcmdapi.Config{Clusters: map[string]*clientcmdapi.Cluster{"": {Server: "https://elsewhere:6443", CertificateAuthorityData: a.ca.pem()}}})
	if err != nil {
		a.t.Error(err)
	}
	signature, err := jws.ComputeDetachedSignature(string(kubeconfig), a.token.ID, a.token.Secret)
	if err != nil {
		a.t.Error(err)
	}
	data := map[string]string{"kubeconfig": string(kubeconfig), "jws-kubeconfig-" + a.token.ID: signature}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info(data)
	return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, Data: data}
}

func (a *api) settingsMap() corev1.ConfigMap {
	return corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "settings", ResourceVersion: "1"}, Data: map[string]string{"settings.json": a.settings}}
}

// createCSR signs or denies at once.
func (a *api) createCSR(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	decoded, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil) // it is protobuf
	object, ok := decoded.(*certificatesv1.CertificateSigningRequest)
	if err != nil || !ok {
		a.t.Errorf("certificate request: %T, %v", decoded, err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	object.TypeMeta = metav1.TypeMeta{Kind: "CertificateSigningRequest", APIVersion: "certificates.k8s.io/v1"}
	object.Name, object.UID, object.ResourceVersion = fmt.Sprintf("%s%d", object.GenerateName, len(a.csrs)), "uid", "1"
	block, _ := pem.Decode(object.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		a.t.Error(err)
		return
	}
	condition := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test"}
	if a.deny != "" {
		condition.Type, condition.Message = certificatesv1.CertificateDenied, a.deny
	} else {
		object.Status.Certificate = a.ca.sign(a.t, request.PublicKey, request.Subject, time.Now().Add(a.life))
	}
	object.Status.Conditions = append(object.Status.Conditions, condition)
	if a.silent {
		object.Status = certificatesv1.CertificateSigningRequestStatus{}
	}
	a.csrs[object.Name] = object
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_ = json.NewEncoder(w).Encode(object)
}

// options are those of a machine that joins a.
func (a *api) options(t *testing.T) Options {
	t.Helper()
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	return Options{DataDir: filepath.Join(t.TempDir(), "data"), Server: a.URL, Token: a.token.String(), NodeName: "one", Version: "v1.37.1",
		Settings: ConfigMapKey{"ns", "settings", "settings.json"}, Log: quiet}
}

// joined joins.
func joined(t *testing.T, o Options) *Connection {
	t.Helper()
	c, err := Find(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	connection, err := c.Join(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(connection.way.close)
	return connection
}

// running runs the connection until the test ends, or its result is asked for.
func running(t *testing.T, c *Connection) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() { stop() })
	return stop
}

// files are those below dir, with their contents.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return nil
		}
		text, _ := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		out[name] = string(text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not happen: %s", what)
		}
	}
}
