package approver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const group = "system:bootstrappers:kubelith:agents"

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// request creates a signed request in PEM.

func request(t *testing.T, key *ecdsa.PrivateKey, template x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

// made is when the objects of the tests were created.

var made = time.Now().Truncate(time.Second)

// csr is a request as the API server stores it.

func csr(name, signer, user string, groups []string, usages []certificatesv1.KeyUsage, pem []byte) *certificatesv1.CertificateSigningRequest {
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name), CreationTimestamp: metav1.NewTime(made)},
		Spec:       certificatesv1.CertificateSigningRequestSpec{Request: pem, SignerName: signer, Username: user, Groups: groups, Usages: usages},
	}
}

// joining is the request of a machine with a token.

func joining(t *testing.T, name, node string, key *ecdsa.PrivateKey) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	return csr(name, "kubernetes.io/kube-apiserver-client-kubelet", "system:bootstrap:abc123", []string{"system:bootstrappers", group, "system:authenticated"},
		[]certificatesv1.KeyUsage{"digital signature", "client auth"}, request(t, key, x509.CertificateRequest{Subject: subject(node)}))
}

// serving is the request of a node's kubelet.

func serving(t *testing.T, node string, dns []string, ips ...string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	template := x509.CertificateRequest{Subject: subject(node), DNSNames: dns}
	for _, ip := range ips {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(ip))
	}
	return csr("csr", "kubernetes.io/kubelet-serving", "system:node:"+node, []string{"system:nodes", "system:authenticated"},
		[]certificatesv1.KeyUsage{"digital signature", "server auth"}, request(t, newKey(t), template))
}

func node(name string, addresses ...string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(made)}}
	for _, a := range addresses {
		kind := corev1.NodeHostName
		if net.ParseIP(a) != nil {
			kind = corev1.NodeInternalIP
		}
		n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: kind, Address: a})
	}
	return n
}

// apiCert writes the certificate of an API server.

func apiCert(t *testing.T) string {
	t.Helper()
	key := newKey(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour),
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default.svc", "api.example", "*.wild.example", "server-1"},
		IPAddresses: []net.IP{net.ParseIP("127.0.0.1"), net.ParseIP("10.43.0.1"), net.ParseIP("192.0.2.1"), net.ParseIP("2001:db8::1")}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "apiserver.crt")
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// cluster is a Server on a cluster in memory. Its caches stay as they were at its creation.

type cluster struct {
	*Server
	client *fake.Clientset
	log    *test.Hook
	spent  []string // "token machine" of each call
}

func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	log, hook := test.NewNullLogger()
	c := &cluster{client: fake.NewClientset(objects...), log: hook}
	c.Server = newServer(Options{
		ServerNames: func() []string { return []string{"server-1"} }, ServerCert: apiCert(t), ClusterDomain: "cluster.local",
		Networks: []string{"10.42.0.0/16", "10.43.0.0/16", "fd42::/56"},
		Spend: func(_ context.Context, id, machine string) (string, error) {
			c.spent = append(c.spent, id+" "+machine)
			return "", nil
		},
		Log: log,
	}, c.client)
	c.Server.now = func() time.Time { return made }
	index := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	nodes, configMaps, requests := index(), index(), index()
	for _, o := range objects {
		into := map[string]cache.Indexer{"*v1.Node": nodes, "*v1.ConfigMap": configMaps, "*v1.CertificateSigningRequest": requests}[fmt.Sprintf("%T", o)]
		if err := into.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	c.nodes, c.configMaps = corelisters.NewNodeLister(nodes), corelisters.NewConfigMapLister(configMaps).ConfigMaps("kube-system")
	c.removed = neverRemoved{}
	c.requests = certificateslisters.NewCertificateSigningRequestLister(requests)
	return c
}

// ask has the request decided; it returns "approved", "REASON: MESSAGE" of a denial, or "" when it is left alone.

func (c *cluster) ask(t *testing.T, r *certificatesv1.CertificateSigningRequest) (string, error) {
	t.Helper()
	requests := c.client.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Create(t.Context(), r, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if err := c.decide(t.Context(), r.DeepCopy()); err != nil {
		return "", err
	}
	got, err := requests.Get(t.Context(), r.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer(got), nil
}

func answer(r *certificatesv1.CertificateSigningRequest) string {
	for _, c := range r.Status.Conditions {
		if c.Type == certificatesv1.CertificateApproved && c.Status == corev1.ConditionTrue {
			return "approved"
		}
		if c.Type == certificatesv1.CertificateDenied && c.Status == corev1.ConditionTrue {
			return c.Reason + ": " + c.Message
		}
	}
	return ""
}

// reservedFor is the machine that has a name, or "".

func (c *cluster) reservedFor(t *testing.T, name string) string {
	t.Helper()
	r, err := c.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "kubelith-node."+name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	return r.Data["machine"]
}

// TestClient: one rule for a machine that joins in each line.

// A name is that of the machine that came first, for as long as it has the key.

// Of machines that request one name at the same moment exactly one gets it.

// A token that is refused leaves no reservation of a new name, and does not take one away.

// TestServing: one rule for the certificate of a kubelet in each line. The node a has 192.0.2.11, 2001:db8::11 and the

// name a; b has 192.0.2.12.

// A kubelet sends its request once it knows its addresses; the Node may have them a moment later, the cache even later.

// Without the certificate of the API server nothing is approved, and nothing is denied either.

// The name of a Node that was deleted is free; not so when its machine has registered again, or another one has the
// name.

// What fails is tried again.

// The name of a machine that joined and never came is free after an hour.

// Nothing remains of a machine that was not let in but what it needs to read why.

// processInformers end with the process, as those of base/informers.

type processInformers struct {
	informers.SharedInformerFactory
	stop <-chan struct{}
}

func (p processInformers) Start(<-chan struct{}) { p.SharedInformerFactory.Start(p.stop) }

// TestRun: the component answers requests and frees the names of deleted Nodes by itself, and leaves nothing running.

func TestRun(t *testing.T) {
	c := newCluster(t, node("old"), reservation("old", "m", made), joining(t, "before", "a", newKey(t)))
	stop := make(chan struct{})
	shared := processInformers{informers.NewSharedInformerFactory(c.client, 0), stop}
	c.opts.Informers = func() informers.SharedInformerFactory { return shared }
	// The fake cluster sends a watch only what comes after it.
	watching := make(chan struct{}, 4)
	c.client.PrependWatchReactor("*", func(a clienttesting.Action) (bool, watch.Interface, error) {
		w, err := c.client.Tracker().Watch(a.GetResource(), a.GetNamespace())
		watching <- struct{}{}
		return true, w, err
	})
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- c.Run(ctx, func() { close(ready) }) }()
	<-ready
	for range cap(watching) {
		<-watching
	}
	requests := c.client.CertificatesV1().CertificateSigningRequests()
	eventually(t, "the request that was there before", func() bool {
		r, err := requests.Get(t.Context(), "before", metav1.GetOptions{})
		return err == nil && answer(r) == "approved"
	})
	if _, err := requests.Create(t.Context(), joining(t, "after", "a", newKey(t)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a second machine", func() bool {
		r, err := requests.Get(t.Context(), "after", metav1.GetOptions{})
		return err == nil && strings.HasPrefix(answer(r), "NameTaken: ")
	})
	if err := c.client.CoreV1().Nodes().Delete(t.Context(), "old", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the name of a deleted Node", func() bool { return c.reservedFor(t, "old") == "" })
	if _, err := c.client.CoreV1().Nodes().Create(t.Context(), node("server-1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	labelled := func(name string) bool {
		n, err := c.client.CoreV1().Nodes().Get(t.Context(), name, metav1.GetOptions{})
		_, has := n.Labels["node-role.kubernetes.io/control-plane"]
		return err == nil && has
	}
	eventually(t, "the role of a server", func() bool { return labelled("server-1") })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	close(stop)
	shared.Shutdown()
}

func eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !f(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not after 20 s", what)
		}
	}
}
