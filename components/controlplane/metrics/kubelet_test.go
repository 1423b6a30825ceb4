package metrics

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/pki"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// certificates of a cluster whose only node has the address 127.0.0.1.
func certificates(t *testing.T) *pki.Bundle {
	t.Helper()
	b, err := pki.Ensure(pki.Options{Dir: t.TempDir(), NodeName: "n1", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// kubelet is an HTTPS server that wants a certificate of the cluster's CA, as a kubelet does. It returns its port.
func kubelet(t *testing.T, b *pki.Bundle, h http.HandlerFunc) int32 {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(b.KubeletServer.Cert, b.KubeletServer.Key)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(b.ClusterCA.Cert)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	s := httptest.NewUnstartedServer(h)
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

func testNode(port int32, addresses ...corev1.NodeAddress) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	n.Status.Addresses = addresses
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return n
}

var loopback = corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}

// asker is a kubelets for tests, and its log.
func asker(t *testing.T, b *pki.Bundle, nodes ...*corev1.Node) (*kubelets, *bytes.Buffer) {
	t.Helper()
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	for _, n := range nodes {
		indexer.Add(n)
	}
	var text bytes.Buffer
	log := logrus.New()
	log.SetOutput(&text)
	k, err := newKubelets(Options{PKI: b, Log: log}, corelisters.NewNodeLister(indexer))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.client.CloseIdleConnections)
	return k, &text
}

func TestRequestsToKubelet(t *testing.T) {
	b := certificates(t)
	var path, user string
	port := kubelet(t, b, func(w http.ResponseWriter, r *http.Request) {
		path, user = r.Method+" "+r.URL.String(), r.TLS.PeerCertificates[0].Subject.CommonName
		io.WriteString(w, answer)
	})
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	k, text := asker(t, b)
	batch, err := k.GetMetrics(t.Context(), testNode(port, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "nonsense.invalid"}, loopback))
	if err != nil || len(batch.Nodes) != 1 || len(batch.Pods) != 1 {
		t.Fatalf("%v, %v\n%s", batch, err, text)
	}
	if path != "GET /metrics/resource" || user != "kube-apiserver-kubelet-client" {
		t.Errorf("%s asks %s", user, path)
	}
}

// TestLogsFailuresOnce: a node's failure is logged when it begins and when it ends, and is no error to metrics-server.
func TestLogsFailuresOnce(t *testing.T) {
	b := certificates(t)
	status := http.StatusInternalServerError
	port := kubelet(t, b, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, answer)
	})
	node := testNode(port, loopback)
	k, text := asker(t, b, node)
	// said checks that the log has one line with all the wanted parts, or no line if none is wanted.
	said := func(what string, want ...string) {
		t.Helper()
		got := text.String()
		text.Reset()
		if strings.Count(got, "\n") != min(len(want), 1) {
			t.Errorf("%s: the log has %q", what, got)
		}
		for _, w := range want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: the log has %q, not %q", what, got, w)
			}
		}
	}
	ask := func(ctx context.Context, n *corev1.Node) bool {
		t.Helper()
		batch, err := k.GetMetrics(ctx, n)
		if err != nil {
			t.Errorf("%v", err)
		}
		return batch != nil
	}
	notReady := node.DeepCopy()
	notReady.Status.Conditions[0].Status = corev1.ConditionUnknown
	ask(t.Context(), notReady)
	said("a node that is not ready")
	ask(t.Context(), node)
	said("first failure")
	ask(t.Context(), node)
	said("second failure", "cannot scrape the metrics of node n1", "500")
	ask(t.Context(), node)
	said("third failure")
	status = http.StatusOK
	if !ask(t.Context(), node) {
		t.Error("no metrics")
	}
	said("the end", "node n1 serves metrics again")

	status = http.StatusInternalServerError
	ask(t.Context(), node)
	status = http.StatusOK
	ask(t.Context(), node)
	said("a single failure")

	status = http.StatusFound
	for range 2 {
		if ask(t.Context(), node) {
			t.Error("a redirect was followed, or taken for an answer")
		}
	}
	said("a redirection", "302")
	stopped, cancel := context.WithCancel(t.Context())
	cancel()
	k.failing = map[string]bool{}
	ask(stopped, node)
	said("asked to stop")

	k.failing = map[string]bool{"gone": true}
	ask(t.Context(), node)
	if _, known := k.failing["n1"]; len(k.failing) != 1 || !known {
		t.Errorf("remembered are %v, of which only n1 exists", k.failing)
	}
}

func TestTrustsTheClusterOnly(t *testing.T) {
	b, other := certificates(t), certificates(t)
	port := kubelet(t, other, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, answer) })
	k, text := asker(t, b)
	k.failing["n1"] = false // once already
	if batch, _ := k.GetMetrics(t.Context(), testNode(port, loopback)); batch != nil || !strings.Contains(text.String(), "unknown authority") {
		t.Errorf("a kubelet of another CA: %v\n%s", batch, text)
	}
}

// TestRenewedCertificate: a new connection has the certificate that is in the file now.
func TestRenewedCertificate(t *testing.T) {
	b := certificates(t)
	var users []string
	port := kubelet(t, b, func(w http.ResponseWriter, r *http.Request) {
		users = append(users, r.TLS.PeerCertificates[0].Subject.CommonName)
		if len(users) == 1 {
			w.WriteHeader(http.StatusUnauthorized) // as when the certificate has expired
			return
		}
		io.WriteString(w, answer)
	})
	k, _ := asker(t, b)
	k.GetMetrics(t.Context(), testNode(port, loopback))
	for from, to := range map[string]string{b.Admin.Cert: b.KubeletClient.Cert, b.Admin.Key: b.KubeletClient.Key} {
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	batch, _ := k.GetMetrics(t.Context(), testNode(port, loopback))
	if want := "[kube-apiserver-kubelet-client kubelith-admin]"; batch == nil || fmt.Sprint(users) != want {
		t.Errorf("asked as %v, want %v", users, want)
	}
}

func TestNoCA(t *testing.T) {
	b := certificates(t)
	if err := os.WriteFile(b.KubeletTrust, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newKubelets(Options{PKI: b}, nil); err == nil || !strings.Contains(err.Error(), b.KubeletTrust) {
		t.Errorf("got %v", err)
	}
}

func TestResourceURL(t *testing.T) {
	at := func(kind corev1.NodeAddressType, address string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: address}
	}
	for _, c := range []struct {
		want string
		node *corev1.Node
	}{
		{"https://10.0.0.1:10250/metrics/resource", testNode(10250, at(corev1.NodeHostName, "n1"), at(corev1.NodeExternalIP, "192.0.2.1"), at(corev1.NodeInternalIP, "10.0.0.1"))},
		{"https://[fd00::1]:1/metrics/resource", testNode(1, at(corev1.NodeInternalIP, "fd00::1"), at(corev1.NodeInternalIP, "10.0.0.1"))},
		{"https://192.0.2.1:10250/metrics/resource", testNode(10250, at(corev1.NodeInternalDNS, "n1.local"), at(corev1.NodeExternalIP, "192.0.2.1"))},
		{"https://n1:10250/metrics/resource", testNode(10250, at(corev1.NodeHostName, "n1"))},
		{"", testNode(0, at(corev1.NodeInternalIP, "10.0.0.1"))},
		{"", testNode(10250)},
	} {
		if got := resourceURL(c.node); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	k, text := asker(t, certificates(t))
	if batch, err := k.GetMetrics(t.Context(), testNode(0)); batch != nil || err != nil || text.Len() > 0 {
		t.Errorf("a node that does not report the address of its kubelet: %v, %v\n%s", batch, err, text)
	}
}

// TestHangingKubelet: the context ends a request to a kubelet that does not answer.
func TestHangingKubelet(t *testing.T) {
	b := certificates(t)
	port := kubelet(t, b, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	k, text := asker(t, b)
	k.failing["n1"] = false // once already
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if batch, err := k.GetMetrics(ctx, testNode(port, loopback)); batch != nil || err != nil || !strings.Contains(text.String(), "deadline exceeded") {
		t.Errorf("%v, %v\n%s", batch, err, text)
	}
}
