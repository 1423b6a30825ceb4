// Package certificates tests what operators see of certificates.
package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestList: kubelith certificate list shows all certificates whether the server runs or not, the metrics report when
// each expires, and the Node has an Event for a CA in the last tenth of its life.
func TestList(t *testing.T) {
	t.Parallel()
	s := harness.New(t, harness.Options{})
	if r := s.RunBinary(t, "certificate", "list"); r.Code == 0 || strings.Count(r.Stderr, "\n") != 1 || !strings.Contains(r.Stderr, "has no certificates: run it as root on a server or an agent") {
		t.Errorf("before a first start: status %d, %q", r.Code, r.Stderr)
	}
	ends := time.Now().Add(30 * 24 * time.Hour).Truncate(time.Second).UTC()
	placeCA(t, s.Path(harness.DataDir+"/server/tls"), ends)
	s.Launch(t)
	s.WaitReady(t)
	node := s.Node(t).Name

	names := map[string]listed{}
	for _, c := range list(t, s) {
		names[c.Name] = c
	}
	for name, subject := range map[string]string{
		"cluster-ca": "old", "kubelet-ca": "kubelith-kubelet-ca", "front-proxy-ca": "kubelith-front-proxy-ca", "peer-ca": "kubelith-peer-ca",
		"apiserver": "kube-apiserver", "apiserver-kubelet-client": "kube-apiserver-kubelet-client", "front-proxy-client": "front-proxy-client",
		"kubelet-serving": "system:node:" + node, "peer": node, "admin": "kubelith-admin",
	} {
		c, ok := names[name]
		if !ok || c.Subject != subject || c.SecondsLeft <= 0 || !strings.HasPrefix(c.File, harness.DataDir) {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(names)), func(n string) bool { return strings.HasPrefix(n, "plugin-") }) { // the default StorageClass
		t.Errorf("no plugin: %v", names)
	}
	if c := names["cluster-ca"]; !c.NotAfter.Equal(ends) || !c.CA {
		t.Errorf("cluster-ca: %+v", c)
	}
	if c := names["apiserver"]; !c.NotAfter.Equal(ends) || c.Issuer != "old" { // no leaf outlives its CA
		t.Errorf("apiserver: %+v", c)
	}

	harness.Eventually(t, time.Minute, "the Event of the CA", func() error {
		events, err := s.Client(t).CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=CertificateExpires"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Type == corev1.EventTypeWarning && e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == node && strings.HasPrefix(e.Message, "certificate cluster-ca (") {
				return nil
			}
		}
		return fmt.Errorf("%d Events", len(events.Items))
	})
	want := `kubelith_certificate_expiration_timestamp_seconds{ca="true",certificate="cluster-ca",subject="old"} ` + strconv.FormatFloat(float64(ends.Unix()), 'g', -1, 64)
	for what, args := range map[string][]string{
		"the apiserver": {"get", "--raw", "/metrics"},
		"the kubelet":   {"get", "--raw", "/api/v1/nodes/" + node + "/proxy/metrics"},
	} {
		if out := s.Kubectl(t, args...); !strings.Contains(out, want) {
			t.Errorf("%s: no %s", what, want)
		}
	}

	s.Stop(t)
	r := s.RunBinary(t, "certificate", "list")
	if r.Code != 0 || strings.Count(r.Stdout, "\n") != 11 || !strings.Contains(r.Stdout, "kube-apiserver") {
		t.Errorf("without a server: status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	t.Logf("\n%s", r.Stdout)
	admin := s.Path(harness.DataDir + "/server/tls/admin.crt")
	intact, err := os.ReadFile(admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(admin, 10); err != nil {
		t.Fatal(err)
	}
	r = s.RunBinary(t, "certificate", "list")
	if r.Code == 0 || !strings.Contains(r.Stderr, "admin.crt is damaged") || !strings.Contains(r.Stdout, "kube-apiserver") {
		t.Errorf("with a damaged file: status %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if err := os.WriteFile(admin, intact, 0o600); err != nil {
		t.Fatal(err)
	}

	// As docs/certificates.md describes for a CA that expires: its key stays, and so does all trust in it.
	harness.RequireProgram(t, "openssl")
	old := s.Client(t)
	s.Exec(t, "sh", "-c", "cd "+harness.DataDir+"/server/tls && for ca in cluster kubelet front-proxy peer; do openssl x509 -in $ca-ca.crt -signkey $ca-ca.key -days 3650 -out new.crt && mv new.crt $ca-ca.crt || exit; done")
	s.Launch(t)
	s.WaitReady(t)
	for _, c := range list(t, s) {
		switch left := time.Until(c.NotAfter); {
		case c.CA && left < 9*365*24*time.Hour, !c.CA && left < 300*24*time.Hour:
			t.Errorf("after the CAs were signed again: %+v", c)
		}
	}
	if _, err := old.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceDefault, metav1.GetOptions{}); err != nil {
		t.Errorf("a client that knows the former certificate of the CA: %v", err)
	}
}

// listed is what the test reads of an entry.
type listed struct {
	Name, Subject, Issuer, File string
	CA                          bool
	NotAfter                    time.Time
	SecondsLeft                 int64
}

func list(t *testing.T, s *harness.Server) []listed {
	t.Helper()
	r := s.RunBinary(t, "certificate", "list", "-o", "json")
	var all []listed
	if err := json.Unmarshal([]byte(r.Stdout), &all); err != nil || r.Code != 0 {
		t.Fatalf("status %d, %v\n%s%s", r.Code, err, r.Stdout, r.Stderr)
	}
	return all
}

// placeCA writes an organization's own CA, which is nearly ten years old, before the first start of a server.
func placeCA(t *testing.T, dir string, ends time.Time) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "old"}, NotBefore: ends.AddDate(-10, 0, 0), NotAfter: ends,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"cluster-ca.crt": {Type: "CERTIFICATE", Bytes: der}, "cluster-ca.key": {Type: "EC PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(dir+"/"+name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
