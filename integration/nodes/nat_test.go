package nodes

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// TestBehindNAT: an agent opens connections to the server, and no packet of a connection that begins elsewhere gets to
// it. What the API server needs of the agent and its pods works all the same, through the agent's tunnel, which reaches
// only it.
func TestBehindNAT(t *testing.T) {
	t.Parallel()
	c := harness.StartCluster(t, harness.ClusterOptions{})
	agent := c.Prepare(t, harness.Options{Args: []string{"--log-level=info,tunnel=debug"}}, harness.AgentOptions{Token: c.Server.Token(t)})
	agent.Exec(t, "nft", `add table inet klt_nat
add chain inet klt_nat in { type filter hook prerouting priority -150; }
add rule inet klt_nat in iifname eth0 meta l4proto { tcp, udp, icmp } ct state new drop`)
	agent.Launch(t)
	c.Agents = append(c.Agents, agent)
	agent.WaitReady(t)

	t.Run("streams", func(t *testing.T) { testStreams(t, c, agent) })
	ns := c.Namespace(t)
	pod := web(ns, "far", "far")
	pod = c.Server.Run(t, on(agent, pod))
	mustNotReach(t, c.Server, agent.NodeIP, 10250)
	mustNotReach(t, c.Server, pod.Status.PodIP, 8080)
	svc := service(t, c, ns, "far", nil)
	through := func(t *testing.T) {
		t.Helper()
		for what, path := range map[string]string{
			"a node":    "/api/v1/nodes/" + agent.NodeName() + "/proxy/healthz",
			"a pod":     "/api/v1/namespaces/" + ns + "/pods/" + pod.Name + ":8080/proxy/hostname",
			"a Service": "/api/v1/namespaces/" + ns + "/services/" + svc.Name + ":http/proxy/hostname",
		} {
			want := map[bool]string{true: "ok", false: pod.Name}[what == "a node"]
			harness.Eventually(t, 60*time.Second, what+" through the proxy of the API", func() error {
				got, err := raw(t, c, path)
				if err == nil && got != want {
					err = fmt.Errorf("the answer is %q", got)
				}
				return err
			})
		}
		harness.Eventually(t, 30*time.Second, "exec", func() error { // a kubelet that has just started does not know its pods yet
			out, _, err := c.Server.TryPodExec(t, pod, "main", harness.Shell("echo here")...)
			if err == nil && out != "here\n" {
				err = fmt.Errorf("the answer is %q", out)
			}
			return err
		})
	}
	t.Run("proxy", through)
	t.Run("webhook", func(t *testing.T) { testFarWebhook(t, c, ns, agent) })
	t.Run("aggregated API", func(t *testing.T) { testFarAPI(t, c, ns, agent) })
	t.Run("agent restarted", func(t *testing.T) {
		agent.Restart(t)
		through(t)
	})
	t.Run("server restarted", func(t *testing.T) {
		c.Server.Kill9(t)
		c.Server.Launch(t)
		c.Server.WaitReady(t)
		through(t)
	})
	t.Run("compromised", func(t *testing.T) { testCompromisedTunnel(t, c, ns, agent) })
	t.Run("reached", func(t *testing.T) { // the agent's Node is true again, and there is a route to it
		agent.Exec(t, "nft", "delete", "table", "inet", "klt_nat")
		before := strings.Count(agent.Logs(), reached)
		agent.Launch(t)
		agent.WaitReady(t)
		harness.Eventually(t, 60*time.Second, "the agent to need no tunnel", func() error {
			if strings.Count(agent.Logs(), reached) == before {
				return errors.New("it has not logged so")
			}
			return nil
		})
		through(t)
	})
}

// reached is in the log of an agent that needs no tunnel.
const reached = "reaches this node"

// mustNotReach fails the test when a node can connect to an address.
func mustNotReach(t *testing.T, from *harness.Server, ip string, port int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if conn, err := from.DialContext(ctx, "tcp", net.JoinHostPort(ip, fmt.Sprint(port))); err == nil {
		conn.Close()
		t.Fatalf("%s reaches %s: this test would prove nothing", from.NodeName(), ip)
	}
}

// farServer runs a program with TLS on a node, with a Service in front of it, and returns its certificate in base64.
func farServer(t *testing.T, c *harness.Cluster, ns, name string, node *harness.Server, command ...string) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + "." + ns + ".svc"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	_, err = c.Server.Client(t).CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: cert, corev1.TLSPrivateKeyKey: pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod := on(node, harness.Pod(ns, name, append([]string{"/bin/probe"}, command...)...))
	pod.Labels = map[string]string{"app": name}
	pod.Spec.Volumes = []corev1.Volume{{Name: "certs", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "certs", MountPath: "/certs"}}
	pod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(8443)}}}
	service(t, c, ns, name, func(svc *corev1.Service) {
		svc.Spec.Ports = []corev1.ServicePort{{Port: 443, TargetPort: intstr.FromInt(8443)}}
	})
	c.Server.Run(t, pod)
	return base64.StdEncoding.EncodeToString(cert)
}

// testFarWebhook: a webhook in a pod on the agent reviews requests.
func testFarWebhook(t *testing.T, c *harness.Cluster, ns string, agent *harness.Server) {
	ca := farServer(t, c, ns, "hook", agent, "webhook")
	name := ns + "-far"
	t.Cleanup(func() {
		c.Server.TryKubectl(t, "delete", "validatingwebhookconfiguration", name, "--ignore-not-found")
	})
	c.Server.KubectlInput(t, fmt.Sprintf(`apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: %[1]s}
webhooks:
- name: probe.kubelith.io
  clientConfig: {service: {namespace: %[2]s, name: hook, path: /deny-label}, caBundle: %[3]s}
  rules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Fail
  timeoutSeconds: 5
`, name, ns, ca), "apply", "-f", "-")
	harness.Eventually(t, 60*time.Second, "the webhook to review", func() error {
		_, err := c.Server.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "bad-", Labels: map[string]string{"forbidden": "x"}}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "the label forbidden is forbidden") {
			return fmt.Errorf("an object that the webhook refuses: %v", err)
		}
		return nil
	})
	if _, err := c.Server.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "good"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("an object that the webhook allows: %v", err)
	}
}

// testFarAPI: an API in a pod on the agent is the cluster's.
func testFarAPI(t *testing.T, c *harness.Cluster, ns string, agent *harness.Server) {
	ca := farServer(t, c, ns, "stones", agent, "aggregated", "--group=far.kubelith.io")
	t.Cleanup(func() {
		c.Server.TryKubectl(t, "delete", "apiservice", "v1.far.kubelith.io", "--ignore-not-found")
	})
	c.Server.KubectlInput(t, fmt.Sprintf(`apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.far.kubelith.io}
spec: {group: far.kubelith.io, version: v1, groupPriorityMinimum: 1000, versionPriority: 10, service: {namespace: %s, name: stones}, caBundle: %s}
`, ns, ca), "apply", "-f", "-")
	c.Server.Kubectl(t, "wait", "--for=condition=Available", "apiservice/v1.far.kubelith.io", harness.Timeout(60*time.Second))
	if out := c.Server.Kubectl(t, "get", "--raw", "/apis/far.kubelith.io/v1/stones/granite"); !strings.Contains(out, `"user":"kubelith-admin"`) {
		t.Errorf("the API on the agent: %q", out)
	}
}

// fakeAgent opens a tunnel with the certificate of an agent, and answers each connection with "stolen". asked returns
// the addresses that the server wanted.
func fakeAgent(t *testing.T, agent *harness.Server) (asked func() []string) {
	t.Helper()
	dir := agent.Path(harness.DataDir + "/agent/pki/")
	current, err := os.Readlink(filepath.Join(dir, "client-current.pem"))
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, filepath.Base(current)), filepath.Join(dir, filepath.Base(current)))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "cluster-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	host := strings.TrimPrefix(agent.URL(), "https://")
	conn, err := tls.Dial("tcp", host, &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: "kubernetes"})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET /kubelith/v1/tunnel HTTP/1.1\r\nHost: kubernetes\r\nConnection: Upgrade\r\nUpgrade: kubelith-tunnel\r\nKubelith-Tunnel: always\r\n\r\n")
	from := bufio.NewReader(conn)
	answer, err := http.ReadResponse(from, nil)
	if err != nil || answer.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("no tunnel: %v, %v", answer, err)
	}
	var mu sync.Mutex
	var all []string
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	server := &http.Server{Protocols: protocols, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Host)
		mu.Unlock()
		w.WriteHeader(http.StatusOK)
		http.NewResponseController(w).Flush()
		buffer := make([]byte, 4096)
		if _, err := r.Body.Read(buffer); err == nil {
			io.WriteString(w, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nstolen")
			http.NewResponseController(w).Flush()
			io.Copy(io.Discard, r.Body)
		}
	})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		server.Serve(&onlyConn{Conn: reread{conn, from}, over: make(chan struct{})})
	}()
	t.Cleanup(func() { server.Close(); conn.Close(); <-ended })
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return append([]string{}, all...)
	}
}

// reread is a connection of which some bytes have been read.
type reread struct {
	net.Conn
	from *bufio.Reader
}

func (r reread) Read(p []byte) (int, error) { return r.from.Read(p) }

// onlyConn is a listener with one connection.
type onlyConn struct {
	net.Conn
	given, closed sync.Once
	over          chan struct{}
}

func (l *onlyConn) Accept() (c net.Conn, err error) {
	if l.given.Do(func() { c = l.Conn }); c != nil {
		return c, nil
	}
	<-l.over
	return nil, net.ErrClosed
}
func (l *onlyConn) Close() error   { l.closed.Do(func() { close(l.over) }); return nil }
func (l *onlyConn) Addr() net.Addr { return l.LocalAddr() }

// testCompromisedTunnel: an attacker has the agent's credentials, claims the addresses of the server's node and of a
// pod there, and opens a tunnel. Only connections to the agent come through it.
func testCompromisedTunnel(t *testing.T, c *harness.Cluster, ns string, agent *harness.Server) {
	near := c.Server.Run(t, on(c.Server, web(ns, "near", "near")))
	far := c.Server.Run(t, on(agent, web(ns, "victim", "victim")))
	agent.Kill9(t)
	asked := fakeAgent(t, agent)
	addresses := append(agent.Node(t).Status.Addresses,
		corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: c.Server.NodeIP}, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: near.Status.PodIP})
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses, "daemonEndpoints": map[string]any{"kubeletEndpoint": map[string]any{"Port": 10250}}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stolen(t, agent, rest.ImpersonationConfig{}).CoreV1().Nodes().Patch(t.Context(), agent.NodeName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	// Its own, so that there is a tunnel.
	harness.Eventually(t, 30*time.Second, "connections to the agent's pod in its tunnel", func() error {
		got, err := raw(t, c, "/api/v1/namespaces/"+ns+"/pods/"+far.Name+":8080/proxy/hostname")
		if err == nil && got != "stolen" {
			err = fmt.Errorf("the answer is %q", got)
		}
		return err
	})
	harness.Eventually(t, 30*time.Second, "a connection to the agent's kubelet in its tunnel", func() error {
		raw(t, c, "/api/v1/nodes/"+agent.NodeName()+"/proxy/healthz") // it has no certificate for that
		for _, to := range asked() {
			if to == agent.NodeIP+":10250" {
				return nil
			}
		}
		return errors.New("there was none")
	})
	// Those of others.
	if got, err := raw(t, c, "/api/v1/nodes/"+c.Server.NodeName()+"/proxy/healthz"); err != nil || got != "ok" {
		t.Errorf("the server's kubelet: %q, %v", got, err)
	}
	if got, err := raw(t, c, "/api/v1/namespaces/"+ns+"/pods/"+near.Name+":8080/proxy/hostname"); err != nil || got != near.Name {
		t.Errorf("the pod on the server: %q, %v", got, err)
	}
	own := map[string]bool{agent.NodeIP: true}
	pods, err := c.Server.Client(t).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + agent.NodeName()})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		own[p.Status.PodIP] = true
	}
	for _, to := range asked() {
		if ip, _, _ := net.SplitHostPort(to); !own[ip] {
			t.Errorf("the agent got a connection to %s", to)
		}
	}
}
