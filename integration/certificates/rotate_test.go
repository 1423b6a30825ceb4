package certificates

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	certutil "k8s.io/client-go/util/cert"

	"kubelith.io/kubelith/host/sandbox"
	"kubelith.io/kubelith/integration/harness"
)

// rotation is what the test reads of kubelith certificate rotate-ca --status.
type rotation struct {
	Rotation struct{ ID, Phase string }
	Waiting  string
}

func rotationOf(s *harness.Server, t *testing.T) (v rotation, err error) {
	r := s.RunBinary(t, "certificate", "rotate-ca", "--status", "-o", "json")
	if r.Code != 0 {
		return v, errors.New(r.Stderr)
	}
	return v, json.Unmarshal([]byte(r.Stdout), &v)
}

// TestRotateCA: a server gets new CAs while it serves. It is killed in the first two phases, and goes on. A client with
// the former administrator's certificate works until the last phases and not after them; a service account's token
// stays valid. Afterwards the former CAs are nowhere. (integration/servers, TestRotateCA has nodes, pods and several
// servers.)
func TestRotateCA(t *testing.T) {
	t.Parallel()
	network := &sandbox.Network{}
	s := harness.Start(t, harness.Options{Network: network, Disable: []string{"kubelet", "containerd", "proxy", "dns"}, NoWait: true, NoTestImage: true})
	s.WaitAPI(t)
	if r := s.RunBinary(t, "certificate", "rotate-ca", "--status"); r.Code != 0 || !strings.Contains(r.Stdout, "The CAs have not been rotated yet.") {
		t.Errorf("before: status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	ns := s.Namespace(t)
	former := s.RESTConfig(t) // as a copy on another machine
	var made *authenticationv1.TokenRequest
	harness.Eventually(t, time.Minute, "a service account's token", func() (err error) {
		made, err = s.Client(t).CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
		return err
	})
	legacy := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "legacy", Annotations: map[string]string{corev1.ServiceAccountNameKey: "default"}}, Type: corev1.SecretTypeServiceAccountToken}
	if _, err := s.Client(t).CoreV1().Secrets(ns).Create(t.Context(), legacy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	old := published(t, s, ns)
	joins := s.Token(t)
	before := map[string]listed{}
	for _, c := range list(t, s) {
		before[c.Name] = c
	}

	began := time.Now()
	r := s.RunBinary(t, "certificate", "rotate-ca", "--grace=15s", "--no-wait")
	if r.Code != 0 || !strings.Contains(r.Stdout, "phase trust: every machine trusts the new CAs, too") {
		t.Fatalf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, phase := range []string{"trust", "sign"} {
		harness.Eventually(t, time.Minute, "phase "+phase, func() error {
			v, err := rotationOf(s, t)
			if err == nil && v.Rotation.Phase != phase {
				err = fmt.Errorf("phase %s, waiting for %s", v.Rotation.Phase, v.Waiting)
			}
			return err
		})
		if err := get(t, former); err != nil {
			t.Errorf("phase %s: the former kubeconfig: %v", phase, err)
		}
		s.Kill9(t)
		s.Launch(t)
		s.WaitAPI(t)
		if err := get(t, former); err != nil {
			// A start may outlast the phase, and the last phases refuse it.
			if v, unknown := rotationOf(s, t); unknown != nil || slices.Contains([]string{"trust", "sign"}, v.Rotation.Phase) {
				t.Errorf("phase %s, now %s (%v), after kill -9: the former kubeconfig: %v", phase, v.Rotation.Phase, unknown, err)
			}
		}
	}
	pid := s.PID()
	r = s.RunBinary(t, "certificate", "rotate-ca")                                                                           // waits for the end
	if r.Code != 0 || !strings.Contains(r.Stdout, "phase ") || !strings.Contains(r.Stdout, "The last rotation of the CAs") { // the last phases may pass unseen
		t.Errorf("status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	t.Logf("%s:\n%s", time.Since(began).Round(time.Millisecond), r.Stdout)
	if s.PID() != pid {
		t.Error("the server was started again")
	}

	var unknown x509.UnknownAuthorityError
	if err := get(t, former); !errors.As(err, &unknown) {
		t.Errorf("a client that knows the former CA only: %v", err)
	}
	current := s.RESTConfig(t)
	insecure := rest.CopyConfig(former)
	insecure.TLSClientConfig = rest.TLSClientConfig{CAData: current.CAData, CertData: former.CertData, KeyData: former.KeyData}
	if err := get(t, insecure); err == nil || !strings.Contains(err.Error(), "Unauthorized") {
		t.Errorf("a certificate of the former CA: %v", err)
	}
	account := &rest.Config{Host: current.Host, BearerToken: made.Status.Token, TLSClientConfig: rest.TLSClientConfig{CAData: current.CAData}}
	if err := get(t, account); err == nil || !strings.Contains(err.Error(), "system:serviceaccount:"+ns+":default") { // it may not read namespaces
		t.Errorf("a service account's token: %v", err)
	}
	for _, c := range list(t, s) {
		was := before[c.Name]
		switch rotated := c.Name != "peer" && c.Name != "peer-ca"; {
		case strings.HasPrefix(c.Name, "former/"), strings.HasPrefix(c.Name, "next/"):
			t.Errorf("%s is still there", c.Name)
		case rotated == (c.Issuer == was.Issuer):
			t.Errorf("%s: its issuer was %s, and is %s", c.Name, was.Issuer, c.Issuer)
		}
	}
	harness.Eventually(t, 30*time.Second, "the former CAs to be gone", func() error {
		for where, cas := range published(t, s, ns) {
			if len(cas) != 1 || slices.ContainsFunc(old[where], cas[0].Equal) {
				return fmt.Errorf("%s: %d CAs, the first is %s", where, len(cas), cas[0].Subject)
			}
		}
		return nil
	})
	if token := s.Token(t); strings.Split(token, "_")[1] == strings.Split(joins, "_")[1] {
		t.Error("a new join token names the former CA")
	}
	agent := harness.New(t, harness.Options{Network: network, Agent: &harness.AgentOptions{Of: s, Token: joins}, NoTestImage: true})
	if r := agent.RunBinary(t, agent.ServerArgs()...); r.Code == 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "the server's CA is not the token's") {
		t.Errorf("an agent with a token from before: status %d\n%s", r.Code, r.Stderr)
	}
	// It starts with what it has now, and can do it again.
	s.Kill9(t)
	s.Launch(t)
	s.WaitAPI(t)
	if err := get(t, current); err != nil {
		t.Error(err)
	}
}

// get reads a namespace, on a new connection.
func get(t *testing.T, cfg *rest.Config) error {
	t.Helper()
	cfg = rest.CopyConfig(cfg)
	cfg.Dial = (&net.Dialer{}).DialContext // client-go shares connections of configurations without one
	cs, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, err = cs.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}

// published are the CAs that clients find, by where.
func published(t *testing.T, s *harness.Server, ns string) map[string][]*x509.Certificate {
	t.Helper()
	text := map[string]string{}
	for _, at := range [][3]string{
		{ns, "kube-root-ca.crt", "ca.crt"},
		{"kube-system", "kube-root-ca.crt", "ca.crt"},
		{"kube-system", "extension-apiserver-authentication", "client-ca-file"},
		{"kube-system", "extension-apiserver-authentication", "requestheader-client-ca-file"},
	} {
		harness.Eventually(t, time.Minute, "ConfigMap "+at[1], func() error {
			cm, err := s.Client(t).CoreV1().ConfigMaps(at[0]).Get(t.Context(), at[1], metav1.GetOptions{})
			if err == nil && cm.Data[at[2]] == "" {
				err = fmt.Errorf("no %s", at[2])
			}
			if err == nil {
				text[strings.Join(at[:], "/")] = cm.Data[at[2]]
			}
			return err
		})
	}
	harness.Eventually(t, time.Minute, "the CA of a legacy token", func() error {
		secret, err := s.Client(t).CoreV1().Secrets(ns).Get(t.Context(), "legacy", metav1.GetOptions{})
		if err == nil && len(secret.Data["ca.crt"]) == 0 {
			err = errors.New("there is none")
		}
		if err == nil {
			text["legacy token"] = string(secret.Data["ca.crt"])
		}
		return err
	})
	text["admin kubeconfig"] = string(s.RESTConfig(t).CAData)
	for _, file := range []string{"cluster-trust", "kubelet-trust", "front-proxy-trust", "cluster-ca", "kubelet-ca", "front-proxy-ca"} {
		data, err := os.ReadFile(s.Path(harness.DataDir + "/server/tls/" + file + ".crt"))
		if err != nil {
			t.Fatal(err)
		}
		text[file] = string(data)
	}
	out := map[string][]*x509.Certificate{}
	for where, pem := range text {
		cas, err := certutil.ParseCertsPEM([]byte(pem))
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		out[where] = cas
	}
	conn, err := tls.Dial("tcp", strings.TrimPrefix(s.URL(), "https://"), &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.ConnectionState().PeerCertificates[0].CheckSignatureFrom(out["cluster-ca"][0]); err != nil {
		t.Errorf("the API's certificate: %v", err)
	}
	return out
}
