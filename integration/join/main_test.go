// Package join tests the server's half of joining: the tokens, what a machine can read before and after it shows one,
// which certificate it gets, and how a refusal is reported. The tests play the machines and send an agent's
// requests; no agent runs.
package join

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate/csr"

	"kubelith.io/kubelith/integration/harness"
)

const (
	tokenFile  = harness.DataDir + "/server/token"
	clientSign = "kubernetes.io/kube-apiserver-client-kubelet"
	serveSign  = "kubernetes.io/kubelet-serving"
)

// controlPlane is a server that runs no pods: the tests need none.
var controlPlane = harness.Options{Disable: []string{"kubelet", "containerd", "proxy", "dns"}, NoWait: true, NoTestImage: true}

var cluster = harness.NewShared(controlPlane)

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// token is what the tests read in one.
type token struct{ text, hash, id, secret string }

var tokenForm = regexp.MustCompile(`^kl1_([0-9a-f]{64})_([a-z0-9]{6})_([a-z0-9]{16})\n$`)

func parse(text string) (token, error) {
	m := tokenForm.FindStringSubmatch(text)
	if m == nil {
		return token{}, fmt.Errorf("not one line with a token: %q", text)
	}
	return token{strings.TrimSpace(text), m[1], m[2], m[3]}, nil
}

func (tk token) bearer() string { return tk.id + "." + tk.secret }

// server is the shared server; machines can join.
func server(t *testing.T) *harness.Server {
	t.Helper()
	s := cluster.Get(t)
	fromFile(t, s)
	return s
}

// fromFile waits for the token that a server keeps.
func fromFile(t *testing.T, s *harness.Server) (tk token) {
	t.Helper()
	harness.Eventually(t, 90*time.Second, "the token of the server", func() error {
		text, err := os.ReadFile(s.Path(tokenFile))
		if err == nil {
			tk, err = parse(string(text))
		}
		return err
	})
	return tk
}

// create creates a token with the command.
func create(t *testing.T, s *harness.Server, args ...string) token {
	t.Helper()
	tk, err := parse(s.Exec(t, s.BinaryPath(), append([]string{"token", "create"}, args...)...))
	if err != nil {
		t.Fatal(err)
	}
	return tk
}

// clusterInfo gets what any client may read, as a machine that trusts no CA yet.
func clusterInfo(t *testing.T, s *harness.Server) map[string]string {
	t.Helper()
	c := http.Client{Timeout: harness.Patience(10 * time.Second), Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	defer c.CloseIdleConnections()
	resp, err := c.Get(s.URL() + "/api/v1/namespaces/kube-public/configmaps/cluster-info")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s, %v: %s", resp.Status, err, body)
	}
	var info corev1.ConfigMap
	decode(t, body, &info)
	return info.Data
}

// trusted is the CA of the cluster, found by the token's hash, as an agent finds it.
func trusted(t *testing.T, s *harness.Server, hash string) []byte {
	t.Helper()
	config, err := clientcmd.Load([]byte(clusterInfo(t, s)["kubeconfig"]))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		block, _ := pem.Decode(c.CertificateAuthorityData)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo); hex.EncodeToString(sum[:]) == hash {
			return c.CertificateAuthorityData
		}
	}
	t.Fatalf("no CA has the hash %s", hash)
	return nil
}

// machine is one that joins: its key, its token and the CA that it trusts.
type machine struct {
	s     *harness.Server
	key   *ecdsa.PrivateKey
	ca    []byte
	token token
}

func newMachine(t *testing.T, s *harness.Server, tk token) *machine {
	t.Helper()
	return &machine{s: s, key: newKey(t), ca: trusted(t, s, tk.hash), token: tk}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// config connects as an agent does: to the address that it was given, for the name that every server has.
func (m *machine) config() *rest.Config {
	return &rest.Config{Host: m.s.URL(), BearerToken: m.token.bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: m.ca, ServerName: "kubernetes"}}
}

func (m *machine) client(t *testing.T) kubernetes.Interface { return clientFor(t, m.config()) }

func clientFor(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// join asks for the certificate of a node; the error is what an agent would show.
func (m *machine) join(t *testing.T, name string) ([]byte, error) {
	t.Helper()
	return ask(t, m.client(t), clientSign, m.key, x509.CertificateRequest{Subject: subject(name)}, certificatesv1.UsageClientAuth)
}

// node joins, which must succeed, and registers; the client is that of the node.
func (m *machine) node(t *testing.T, name string, addresses ...string) kubernetes.Interface {
	t.Helper()
	_, cs := m.registered(t, name, addresses...)
	return cs
}

// registered is node with the configuration of its client.
func (m *machine) registered(t *testing.T, name string, addresses ...string) (*rest.Config, kubernetes.Interface) {
	t.Helper()
	cert, err := m.join(t, name)
	if err != nil {
		t.Fatalf("%s joins: %v", name, err)
	}
	config := m.shows(t, cert, m.key)
	cs := clientFor(t, config)
	labels := map[string]string{"kubelith.io/role": "agent", "kubelith.io/machine": m.machineLabel(t)}
	if _, err := cs.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{}); err != nil {
		t.Fatalf("%s registers: %v", name, err)
	}
	t.Cleanup(func() { deleteNode(t, m.s, name) })
	reported := []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}}
	for _, a := range addresses {
		kind := corev1.NodeInternalIP
		if net.ParseIP(a) == nil {
			kind = corev1.NodeInternalDNS
		}
		reported = append(reported, corev1.NodeAddress{Type: kind, Address: a})
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": reported}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Nodes().PatchStatus(t.Context(), name, patch); err != nil {
		t.Fatalf("%s reports its addresses: %v", name, err)
	}
	return config, cs
}

// with is a client that shows a certificate and no token.
func (m *machine) with(t *testing.T, cert []byte, key *ecdsa.PrivateKey) kubernetes.Interface {
	t.Helper()
	return clientFor(t, m.shows(t, cert, key))
}

// shows is the configuration of such a client.
func (m *machine) shows(t *testing.T, cert []byte, key *ecdsa.PrivateKey) *rest.Config {
	t.Helper()
	cfg := m.config()
	cfg.BearerToken = ""
	cfg.CertData, cfg.KeyData = cert, keyPEM(t, key)
	return cfg
}

func keyPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
}

func deleteNode(t *testing.T, s *harness.Server, name string) {
	t.Helper()
	if err := s.Client(t).CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Logf("delete node %s: %v", name, err)
	}
}

func subject(name string) pkix.Name {
	return pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + name}
}

// ask requests a certificate and waits for it, with upstream's functions.
func ask(t *testing.T, cs kubernetes.Interface, signer string, key crypto.Signer, template x509.CertificateRequest, usage certificatesv1.KeyUsage) ([]byte, error) {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience(40*time.Second))
	defer cancel()
	request := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	name, uid, err := csr.RequestCertificateWithContext(ctx, cs, request, "", signer, nil, []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, usage}, key)
	if err != nil {
		return nil, err
	}
	return csr.WaitForCertificate(ctx, cs, name, uid)
}

func certificate(t *testing.T, data []byte) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(data)
	if block == nil {
		t.Fatalf("not PEM: %q", data)
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

// refusedWith checks the error that an agent would show, and that the server logged the same one.
func refusedWith(t *testing.T, s *harness.Server, err error, reason, message string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), "denied, reason: "+reason+", message: "+message) {
		t.Errorf("error %v, want %s: %s", err, reason, message)
	}
	inLog(t, s, `component=approver denied a certificate \(`+reason+`\): `+regexp.QuoteMeta(message))
}

// inLog waits for a line of the server's log.
func inLog(t *testing.T, s *harness.Server, pattern string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^.*` + pattern + `.*$`)
	for deadline := time.Now().Add(harness.Patience(10 * time.Second)); !line.MatchString(s.Logs()); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("no line of the server's log matches %s", line)
			return
		}
	}
}

// reserved reports whether a machine has a node's name.
func reserved(t *testing.T, s *harness.Server, name string) bool {
	t.Helper()
	list, err := s.Client(t).CoreV1().ConfigMaps("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=kubelith-node." + name})
	if err != nil {
		t.Fatal(err)
	}
	return len(list.Items) == 1
}
