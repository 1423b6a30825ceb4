package pki

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// TestSuperAdmin: its kubeconfig is in system:masters, which the admin kubeconfig is not, and not for long.
func TestSuperAdmin(t *testing.T) {
	dir := t.TempDir()
	b := ensure(t, options(dir, day0))
	unchanged := dirContents(t, dir)
	text, err := SuperAdmin(dir, "https://127.0.0.1:6443", day0, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	var config clientcmdv1.Config
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(config.AuthInfos[0].AuthInfo.ClientCertificateData)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(readCert(t, b.ClusterCA.Cert))
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if cert.Subject.String() != "CN=kubelith-super-admin,O=system:masters" || !cert.NotAfter.Equal(day0.Add(time.Hour)) {
		t.Errorf("%s, until %s", cert.Subject, cert.NotAfter)
	}
	if key, err := parseKey(config.AuthInfos[0].AuthInfo.ClientKeyData); err != nil || !samePublicKey(cert.PublicKey, key.Public()) {
		t.Errorf("its key: %v", err)
	}
	for name, data := range dirContents(t, dir) {
		if unchanged[name] != data {
			t.Errorf("%s was written", name)
		}
	}

	for life, want := range map[time.Duration]string{0: "lifetime 0s is not allowed", -time.Hour: "lifetime -1h0m0s", SuperAdminLife + 1: "use a positive one of at most 168h0m0s"} {
		if _, err := SuperAdmin(dir, "", day0, life); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", life, err)
		}
	}
	if _, err := SuperAdmin(t.TempDir(), "", day0, time.Hour); err == nil || !strings.Contains(err.Error(), "run this as root on the server") {
		t.Errorf("without a cluster: %v", err)
	}
}
