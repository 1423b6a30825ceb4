package servers

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/integration/harness"
)

// shortLife is how long the certificates of this test are valid; agents' begin five minutes before they are signed.
const shortLife = 150 * time.Second

// TestRenewal: two servers and an agent whose certificates live for minutes. A connection of each kind is open while
// its certificate is renewed and until the old one has ended, and new connections work after that; no process is
// started again. It takes three minutes and runs with KUBELITH_TEST_RENEWAL=1 only: make certificates-test.
func TestRenewal(t *testing.T) {
	if os.Getenv("KUBELITH_TEST_RENEWAL") == "" {
		t.Skip("KUBELITH_TEST_RENEWAL is not set: make certificates-test sets it")
	}
	env := []string{"KUBELITH_TEST_CERTIFICATE_LIFE=" + shortLife.String()}
	signing := "--controller-manager-arg=cluster-signing-duration=" + shortLife.String()
	c := start(t, harness.Options{Env: env, Args: []string{signing}})
	first := c.servers[0]
	second := harness.New(t, harness.Options{Network: c.network, Env: env, Args: []string{signing, "--server=" + first.URL(), "--token=" + c.token(t)}})
	second.Launch(t)
	second.WaitReady(t)
	c.servers = append(c.servers, second)
	agent := harness.New(t, harness.Options{Network: c.network, Agent: &harness.AgentOptions{Of: first, Token: first.Token(t)}})
	agent.Launch(t)
	agent.WaitReady(t)
	nodes := []*harness.Server{first, second, agent}
	pids := map[*harness.Server]int{}
	for _, n := range nodes {
		pids[n] = n.PID()
	}

	ns := first.Namespace(t)
	var pods []*corev1.Pod
	for _, n := range nodes {
		pod := harness.Pod(ns, "prints-"+n.NodeName(), "/bin/probe", "print", "line")
		pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.NodeName()}
		pods = append(pods, first.Run(t, pod))
	}

	// What is open before the renewal.
	var open []*held
	hold := func(what string, stream io.ReadCloser, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		open = append(open, holding(t, what, stream))
	}
	for _, s := range c.servers {
		stream, err := watchPokes(t.Context(), s.Client(t), ns)
		hold("a watch with the administrator's certificate, of "+s.NodeName(), stream, err)
	}
	stream, err := watchPokes(t.Context(), inCluster(t, first, agent, pods[2], ns), ns)
	hold("a watch from a pod of the agent, by its service account", stream, err)
	for i, n := range nodes {
		stream, err := kubeletLogs(t, first, n, pods[i])
		hold("logs from the kubelet of "+n.NodeName(), stream, err)
	}
	extension := aggregate(t, first)
	stream, err = first.Client(t).CoreV1().RESTClient().Get().AbsPath(aggregatedPath+"/streams").Param("watch", "true").Stream(t.Context())
	hold("a stream of an aggregated API server", stream, err)
	peers := established(t, first)
	if len(peers) == 0 {
		t.Fatal("the servers' etcd are not connected")
	}

	before := map[*harness.Server]map[string]time.Time{}
	var last time.Time // when the last one of these ends
	for _, n := range nodes {
		before[n] = ends(t, n)
		for _, end := range before[n] {
			if end.After(last) {
				last = end
			}
		}
	}
	t.Logf("%d certificates end until %s, in %s", len(before[first])+len(before[second])+len(before[agent]), last, time.Until(last).Round(time.Second))

	// Meanwhile, new connections of each kind work all the time.
	for n := 0; time.Now().Before(last.Add(time.Second)); n++ {
		poke(t, first, ns, n)
		for _, pod := range pods {
			twice(t, "the log of "+pod.Name, func() error {
				log, err := first.Client(t).CoreV1().Pods(ns).GetLogs(pod.Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
				if err == nil && !strings.Contains(string(log), "line") {
					err = fmt.Errorf("%q", log)
				}
				return err
			})
		}
		twice(t, "aggregated API", func() error {
			_, err := second.Client(t).CoreV1().RESTClient().Get().AbsPath(aggregatedPath).DoRaw(t.Context())
			return err
		})
		time.Sleep(2 * time.Second)
	}
	expired := time.Now()
	for _, n := range nodes {
		for name, end := range ends(t, n) {
			if old, ok := before[n][name]; !ok || !end.After(old) || end.Before(expired) {
				t.Errorf("%s: %s was not renewed: it ended at %s, and now at %s", n.NodeName(), name, old, end)
			}
		}
	}
	poke(t, first, ns, -1)
	for _, h := range open {
		harness.Eventually(t, 30*time.Second, h.what+", with its old certificate", func() error { return h.aliveAfter(expired) })
	}
	still := established(t, first)
	kept := 0
	for connection := range peers {
		if still[connection] {
			kept++
		}
	}
	t.Logf("etcd: %d of %d connections are still open", kept, len(peers))
	if kept == 0 {
		t.Error("etcd: no connection of before is open")
	}

	// What listens shows its new certificate, and what dials does so with its new one.
	for _, s := range c.servers {
		for _, port := range []string{"6443", "10250", "2380"} {
			if end := shown(t, s, port); end.Before(expired) {
				t.Errorf("%s port %s shows a certificate that has ended at %s", s.NodeName(), port, end)
			}
		}
	}
	if end := shown(t, agent, "10250"); end.Before(expired) {
		t.Errorf("the agent's kubelet shows a certificate that has ended at %s", end)
	}
	if end := extension.last(); end.Before(expired) {
		t.Errorf("aggregated API servers are called with a certificate that ended at %s", end)
	}
	harness.Eventually(t, 90*time.Second, "a heartbeat of the agent", func() error {
		lease, err := first.Client(t).CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), agent.NodeName(), metav1.GetOptions{})
		if err == nil && !lease.Spec.RenewTime.After(expired) {
			err = fmt.Errorf("the last one was at %s", lease.Spec.RenewTime)
		}
		return err
	})
	for n, pid := range pids {
		if n.PID() != pid {
			t.Errorf("%s was started again", n.NodeName())
		}
	}
	// A member that connects again is known by the new certificates, on both sides: of two, both are needed to write.
	second.Kill9(t)
	second.Launch(t)
	second.WaitReady(t)
	poke(t, second, ns, -2)

	// As docs/certificates.md describes for CAs that expire.
	harness.RequireProgram(t, "openssl")
	for _, s := range c.servers {
		s.Kill9(t)
		s.Exec(t, "sh", "-c", "cd "+harness.DataDir+"/server/tls && for ca in cluster kubelet front-proxy peer; do openssl x509 -in $ca-ca.crt -signkey $ca-ca.key -days 3650 -out new.crt && mv new.crt $ca-ca.crt || exit; done")
		s.Launch(t)
		s.WaitReady(t)
		poke(t, s, ns, -3)
	}
	ca, err := os.ReadFile(first.Path(harness.DataDir + "/server/tls/cluster-ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	agent.Stop(t)
	if err := os.WriteFile(agent.Path(harness.DataDir+"/agent/pki/cluster-ca.crt"), ca, 0o600); err != nil {
		t.Fatal(err)
	}
	agent.Launch(t)
	agent.WaitReady(t)
	pod := harness.Pod(ns, "after", "/bin/probe", "print", "line")
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: agent.NodeName()}
	first.Run(t, pod)
	harness.Eventually(t, time.Minute, "the pods' CA", func() error {
		cm, err := first.Client(t).CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		if err == nil && cm.Data["ca.crt"] != string(ca) {
			own, readErr := os.ReadFile(second.Path(harness.DataDir + "/server/tls/cluster-ca.crt"))
			if err = readErr; err == nil && cm.Data["ca.crt"] != string(own) { // of the server that leads
				err = errors.New("it is the former one")
			}
		}
		return err
	})
}

// twice does what may meet a connection that an API server is closing, to use its new certificate on another.
func twice(t *testing.T, what string, do func() error) {
	t.Helper()
	if first := do(); first != nil {
		if err := do(); err != nil {
			t.Errorf("%s: %v, and before: %v", what, err, first)
		}
	}
}

// held is a connection that must stay open; what arrives on it is proof.
type held struct {
	what string
	mu   sync.Mutex
	at   time.Time
	err  error
}

func holding(t *testing.T, what string, stream io.ReadCloser) *held {
	h := &held{what: what}
	done := make(chan struct{})
	go func() {
		defer close(done)
		scanner := bufio.NewScanner(stream)
		scanner.Buffer(nil, 1<<20)
		for scanner.Scan() {
			h.mu.Lock()
			h.at = time.Now()
			h.mu.Unlock()
		}
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.err = scanner.Err(); h.err == nil {
			h.err = io.EOF
		}
	}()
	t.Cleanup(func() { stream.Close(); <-done })
	return h
}

func (h *held) aliveAfter(moment time.Time) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil {
		return harness.Permanent(fmt.Errorf("it has ended, %s before: %w", moment.Sub(h.at).Round(time.Second), h.err))
	}
	if !h.at.After(moment) {
		return fmt.Errorf("the last line came %s before", moment.Sub(h.at))
	}
	return nil
}

// watchPokes watches what poke writes.
func watchPokes(ctx context.Context, cs kubernetes.Interface, ns string) (io.ReadCloser, error) {
	return cs.CoreV1().RESTClient().Get().Namespace(ns).Resource("configmaps").
		Param("watch", "true").Param("timeoutSeconds", "3600").SetHeader("Accept", "application/json").Stream(ctx)
}

func poke(t *testing.T, s *harness.Server, ns string, n int) {
	t.Helper()
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "poke-"}, Data: map[string]string{"n": strconv.Itoa(n)}}
	if _, err := s.Client(t).CoreV1().ConfigMaps(ns).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Errorf("write: %v", err)
	}
}

// inCluster is a client in the network of a pod, with what every pod has: a token, and the CA of kube-root-ca.crt.
func inCluster(t *testing.T, s, node *harness.Server, pod *corev1.Pod, ns string) kubernetes.Interface {
	t.Helper()
	cs := s.Client(t)
	_, err := cs.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "view"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "default", Namespace: ns}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	token, err := cs.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ca, err := cs.CoreV1().ConfigMaps(ns).Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pid := node.ContainerPID(t, pod, "main")
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: "https://10.43.0.1:443", BearerToken: token.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: []byte(ca.Data["ca.crt"])},
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			return harness.DialFrom(ctx, pid, network, address)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// kubeletLogs follows a log on a connection to the kubelet itself: the API server ends its connections to kubelets when
// it renews its own certificate for them.
func kubeletLogs(t *testing.T, s, node *harness.Server, pod *corev1.Pod) (io.ReadCloser, error) {
	t.Helper()
	admin := s.RESTConfig(t)
	pair, err := tls.X509KeyPair(admin.CertData, admin.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	ca, err := os.ReadFile(s.Path(harness.DataDir + "/server/tls/kubelet-trust.crt"))
	if err != nil || !roots.AppendCertsFromPEM(ca) {
		t.Fatalf("the kubelets' CA: %v", err)
	}
	client := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+net.JoinHostPort(node.NodeIP, "10250")+"/containerLogs/"+pod.Namespace+"/"+pod.Name+"/main?follow=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	return response.Body, nil
}

const aggregatedPath = "/apis/renewal.kubelith.io/v1"

// aggregated is an aggregated API server in this process.
type aggregated struct {
	mu  sync.Mutex
	end time.Time
}

// last returns when the certificate of the last connection ends.
func (a *aggregated) last() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.end
}

// aggregate starts it, where the servers reach this process, and waits until the API has it.
func aggregate(t *testing.T, s *harness.Server) *aggregated {
	t.Helper()
	frontProxy := x509.NewCertPool()
	ca, err := os.ReadFile(s.Path(harness.DataDir + "/server/tls/front-proxy-ca.crt"))
	if err != nil || !frontProxy.AppendCertsFromPEM(ca) {
		t.Fatalf("the front proxy's CA: %v", err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(s.HostIP, "0"))
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregated{}
	server := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: frontProxy},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == aggregatedPath {
				a.mu.Lock()
				a.end = r.TLS.PeerCertificates[0].NotAfter
				a.mu.Unlock()
				w.Header().Set("Connection", "close") // the next request shows the certificate of then
			}
			w.Header().Set("Content-Type", "application/json")
			if r.URL.Path != aggregatedPath+"/streams" {
				fmt.Fprint(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"renewal.kubelith.io/v1","resources":[]}`)
				return
			}
			for r.Context().Err() == nil {
				fmt.Fprintln(w, "{}")
				w.(http.Flusher).Flush()
				time.Sleep(500 * time.Millisecond)
			}
		}),
	}
	done := make(chan struct{})
	go func() { defer close(done); server.ServeTLS(listener, "", "") }()
	t.Cleanup(func() { server.Close(); <-done })

	_, port, _ := net.SplitHostPort(listener.Addr().String())
	number, _ := strconv.Atoi(port)
	cs, name := s.Client(t), "renewal"
	if _, err := cs.CoreV1().Services(metav1.NamespaceDefault).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 443}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	target := int32(number)
	if _, err := cs.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{s.HostIP}}},
		Ports: []discoveryv1.EndpointPort{{Port: &target}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, `apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.renewal.kubelith.io}
spec:
  group: renewal.kubelith.io
  version: v1
  service: {namespace: default, name: renewal}
  insecureSkipTLSVerify: true
  groupPriorityMinimum: 100
  versionPriority: 100
`, "apply", "-f", "-")
	harness.Eventually(t, time.Minute, "the aggregated API", func() error {
		_, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath(aggregatedPath).DoRaw(t.Context())
		return err
	})
	return a
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "renewal"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// established returns the connections of etcd to other members, by their addresses and ports.
func established(t *testing.T, s *harness.Server) map[string]bool {
	t.Helper()
	harness.RequireProgram(t, "ss")
	all := map[string]bool{}
	for line := range strings.Lines(s.Exec(t, "ss", "-Htn", "state", "established", "( sport = :2380 or dport = :2380 )")) {
		if fields := strings.Fields(line); len(fields) >= 4 {
			all[fields[2]+" "+fields[3]] = true
		}
	}
	return all
}

// ends returns when each leaf of a node ends.
func ends(t *testing.T, s *harness.Server) map[string]time.Time {
	t.Helper()
	r := s.RunBinary(t, "certificate", "list", "-o", "json")
	var all []struct {
		Name     string
		CA       bool
		NotAfter time.Time
	}
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil || r.Code != 0 {
		t.Fatalf("status %d, %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	out := map[string]time.Time{}
	for _, c := range all {
		if !c.CA {
			out[c.Name] = c.NotAfter
		}
	}
	return out
}

// shown returns when the certificate that a port of a node shows ends.
func shown(t *testing.T, s *harness.Server, port string) (end time.Time) {
	t.Helper()
	conn, err := tls.Dial("tcp", net.JoinHostPort(s.NodeIP, port), &tls.Config{
		InsecureSkipVerify: true, // only the end is of interest
		VerifyConnection:   func(c tls.ConnectionState) error { end = c.PeerCertificates[0].NotAfter; return nil },
	})
	if err == nil {
		conn.Close()
	}
	if end.IsZero() {
		t.Errorf("%s port %s: %v", s.NodeName(), port, err)
	}
	return end
}
