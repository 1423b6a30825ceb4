package pki

import (
	"bytes"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/names"
)

// asKubelet verifies a certificate like a client that calls the kubelet at an address.
func asKubelet(t *testing.T, b *Bundle, cert *x509.Certificate, address string, now time.Time) error {
	t.Helper()
	text, err := os.ReadFile(b.KubeletTrust)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		t.Fatal("no CA of kubelets")
	}
	_, err = cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: address, CurrentTime: now})
	return err
}

// before creates the directory of a release in which the cluster's CA signed for kubelets, and returns an agent's
// kubelet serving certificate from there.
func before(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	b := ensure(t, options(dir, day0))
	s := &store{dir: t.TempDir(), now: day0}
	ca, err := s.authority(b.ClusterCA, "")
	if err != nil {
		t.Fatal(err)
	}
	pair := s.pair("kubelet")
	if err := s.ensureLeaf(leaf{pair: pair, ca: ca, cn: names.NodeUserPrefix + "agent", org: []string{"system:nodes"}, usage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		names: altNames{dns: []string{"agent"}, ips: []net.IP{net.ParseIP("192.0.2.8")}}}); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"kubelet-ca.crt", "kubelet-ca.key", "kubelet-trust.crt", "kubelet-serving.crt", "kubelet-serving.key"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	return readCert(t, pair.Cert)
}

// TestKubeletTrust: a client that is sent to an API server instead of a kubelet refuses it, in a new cluster and in an
// upgraded one. Kubelets are trusted, in the upgraded one also those with an older certificate, for as long as it may
// be valid.
func TestKubeletTrust(t *testing.T) {
	fresh := ensure(t, options(t.TempDir(), day0))
	dir := t.TempDir()
	formerly := before(t, dir)
	upgradedAt := day0.Add(100 * 24 * time.Hour)
	upgraded := ensure(t, options(dir, upgradedAt))
	for name, tc := range map[string]struct {
		bundle  *Bundle
		cert    *x509.Certificate
		address string
		now     time.Time
		want    string // error; empty: none
	}{
		"new: a kubelet":                    {fresh, readCert(t, fresh.KubeletServer.Cert), "192.0.2.7", day0, ""},
		"new: the API server":               {fresh, readCert(t, fresh.APIServer.Cert), "192.0.2.7", day0, "signed by unknown authority"},
		"new: the API server by name":       {fresh, readCert(t, fresh.APIServer.Cert), "localhost", day0, "signed by unknown authority"},
		"upgraded: a kubelet":               {upgraded, readCert(t, upgraded.KubeletServer.Cert), "192.0.2.7", upgradedAt, ""},
		"upgraded: of before":               {upgraded, formerly, "192.0.2.8", upgradedAt, ""},
		"upgraded: of before, by its name":  {upgraded, formerly, "agent", upgradedAt, ""},
		"upgraded: of before, much later":   {upgraded, formerly, "192.0.2.8", upgradedAt.Add(leafLife + time.Hour), "expired"},
		"upgraded: the API server":          {upgraded, readCert(t, upgraded.APIServer.Cert), "192.0.2.7", upgradedAt, "excluded by constraint"},
		"upgraded: the API server, locally": {upgraded, readCert(t, upgraded.APIServer.Cert), "127.0.0.1", upgradedAt, "excluded by constraint"},
	} {
		t.Run(name, func(t *testing.T) {
			err := asKubelet(t, tc.bundle, tc.cert, tc.address, tc.now)
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	if again := ensure(t, options(dir, upgradedAt.Add(time.Hour))); len(again.Changed) > 0 {
		t.Errorf("changed again: %v", again.Changed)
	}
	// Replacing a CA also removes the other one that was trusted.
	for _, f := range []string{"kubelet-ca.crt", "kubelet-ca.key", "kubelet-serving.crt", "kubelet-serving.key"} {
		if err := os.Remove(filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	replaced := ensure(t, options(dir, upgradedAt))
	if err := asKubelet(t, replaced, readCert(t, replaced.KubeletServer.Cert), "192.0.2.7", upgradedAt); err != nil {
		t.Error(err)
	}
	if err := asKubelet(t, replaced, formerly, "192.0.2.8", upgradedAt); err == nil {
		t.Error("what the CA of before has signed is trusted")
	}
}

// The CAs sign certificates that prove an identity, and no CA below them.
func TestNoCABelow(t *testing.T) {
	b := ensure(t, options(t.TempDir(), day0))
	for _, ca := range []Pair{b.ClusterCA, b.KubeletCA, b.FrontProxyCA} {
		if cert := readCert(t, ca.Cert); cert.MaxPathLen != 0 || !cert.MaxPathLenZero {
			t.Errorf("%s: path length %d", ca.Cert, cert.MaxPathLen)
		}
	}
	trust, err := os.ReadFile(b.KubeletTrust)
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(b.KubeletCA.Cert)
	if err != nil || !bytes.Equal(trust, ca) {
		t.Errorf("a new cluster trusts more than the CA of kubelets: %v\n%s", err, trust)
	}
}
