package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"maps"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/cmd/kubelet/app/options"

	"kubelith.io/kubelith/base/pki"
)

// A Node that was deleted comes back with everything that it first registered with: what our settings, the kubelet's
// file and its arguments set.
func TestInitialNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kubelet.yaml")
	text := "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nregisterWithTaints: [{key: file, effect: NoExecute}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := New(Options{NodeName: "one", Labels: []string{"rack=r1"}, Taints: []string{"ours=x:NoSchedule"}, Serving: pki.Pair{Cert: "/c", Key: "/k"},
		RootDir: "/k", StaticPodDir: "/s", CgroupDriver: "cgroupfs", CRISocket: "/c.sock", Args: []string{"config=" + file, "provider-id=cloud://7"}})
	if err != nil {
		t.Fatal(err)
	}
	n := s.initialNode()
	want := []corev1.Taint{{Key: "file", Effect: corev1.TaintEffectNoExecute}, {Key: "ours", Value: "x", Effect: corev1.TaintEffectNoSchedule}}
	if !slices.Equal(n.Spec.Taints, want) || n.Spec.ProviderID != "cloud://7" || n.Labels["rack"] != "r1" || n.Labels[corev1.LabelHostname] != "one" {
		t.Errorf("%+v, labels %v", n.Spec, n.Labels)
	}
}

// A Node of an older version gets our own labels, and no other: those are the user's.
func TestLabel(t *testing.T) {
	s := &Server{opts: Options{NodeName: "one"}, upstream: &options.KubeletServer{}}
	s.upstream.NodeLabels = map[string]string{"kubelith.io/role": "server", "rack": "r1"}
	old := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", Labels: map[string]string{"rack": "r2"}}}
	cs := fake.NewClientset(old)
	for range 2 {
		if err := s.label(t.Context(), cs, old); err != nil {
			t.Fatal(err)
		}
		var err error
		if old, err = cs.CoreV1().Nodes().Get(t.Context(), "one", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		if want := map[string]string{"rack": "r2", "kubelith.io/role": "server"}; !maps.Equal(old.Labels, want) {
			t.Errorf("labels %v, want %v", old.Labels, want)
		}
	}
	patches := 0
	for _, a := range cs.Actions() {
		if a.GetVerb() == "patch" {
			patches++
		}
	}
	if patches != 1 {
		t.Errorf("%d patches, want 1", patches)
	}
}

// An agent's kubelet asks for its serving certificate; a server's has one.
func TestServing(t *testing.T) {
	for want, serving := range map[bool]pki.Pair{true: {}, false: {Cert: "/c", Key: "/k"}} {
		s, err := New(Options{NodeName: "one", Serving: serving, CertDir: "/certs", RootDir: "/k", StaticPodDir: "/s", CgroupDriver: "cgroupfs", CRISocket: "/c.sock"})
		if err != nil {
			t.Fatal(err)
		}
		up := s.Upstream()
		if up.ServerTLSBootstrap != want || up.TLSCertFile != serving.Cert || up.TLSPrivateKeyFile != serving.Key || up.CertDirectory != "/certs" {
			t.Errorf("%+v: bootstrap %v, files %q %q, directory %q", serving, up.ServerTLSBootstrap, up.TLSCertFile, up.TLSPrivateKeyFile, up.CertDirectory)
		}
	}
}

// Ready waits for the certificate: a port that speaks no TLS yet is not ready.
func TestAwaitServing(t *testing.T) {
	var certificate atomic.Pointer[tls.Certificate]
	api := httptest.NewUnstartedServer(http.NotFoundHandler())
	api.Config.ErrorLog = log.New(io.Discard, "", 0)
	api.TLS = &tls.Config{GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		if c := certificate.Load(); c != nil {
			return c, nil
		}
		return nil, errors.New("not signed yet")
	}}
	listener := tls.NewListener(api.Listener, api.TLS)
	go api.Config.Serve(listener)
	defer api.Config.Close()
	up := &options.KubeletServer{}
	up.Address = "0.0.0.0"
	up.Port = int32(api.Listener.Addr().(*net.TCPAddr).Port)
	s := &Server{upstream: up}

	early, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if s.awaitServing(early) {
		t.Fatal("ready without a certificate")
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	certificate.Store(&tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key})
	if !s.awaitServing(t.Context()) {
		t.Error("not ready with a certificate")
	}
}
