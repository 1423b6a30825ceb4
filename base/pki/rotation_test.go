package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// rotation is a directory in which the CAs are rotated.
type rotation struct {
	dir          string
	opts         Options
	former, next map[string]*x509.Certificate // by name of the CA
}

func newRotation(t *testing.T) *rotation {
	t.Helper()
	dir := t.TempDir()
	r := &rotation{dir: dir, opts: options(dir, day0), former: map[string]*x509.Certificate{}, next: map[string]*x509.Certificate{}}
	ensure(t, r.opts)
	for _, ca := range rotated() {
		r.former[ca] = readCert(t, filepath.Join(dir, ca+".crt"))
	}
	next, err := NewCAs("x", day0)
	if err != nil {
		t.Fatal(err)
	}
	if err := BeginRotation(dir, "x", next); err != nil {
		t.Fatal(err)
	}
	for _, ca := range rotated() {
		r.next[ca] = readCert(t, filepath.Join(dir, nextDir, ca+".crt"))
	}
	return r
}

// check compares what Ensure made of a phase.
func (r *rotation) check(t *testing.T, phase Phase) {
	t.Helper()
	b := ensure(t, r.opts)
	for ca, trust := range map[string]string{clusterCA: b.ClusterTrust, kubeletCA: b.KubeletTrust, frontProxyCA: b.FrontProxyTrust} {
		text, err := os.ReadFile(trust)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(text)
		for which, cert := range map[string]*x509.Certificate{"former": r.former[ca], "next": r.next[ca]} {
			_, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: day0})
			if want := which == "next" || phase != Drop; (err == nil) != want {
				t.Errorf("%s: the %s %s is trusted: %v, want %v", phase, which, ca, err == nil, want)
			}
		}
	}
	for _, l := range []struct {
		pair Pair
		ca   string
	}{
		{b.APIServer, clusterCA}, {b.KubeletClient, clusterCA}, {b.Admin, clusterCA}, {b.KubeletServer, kubeletCA}, {b.FrontProxyClient, frontProxyCA},
	} {
		signer, from := r.former[l.ca], Sign
		if l.pair == b.APIServer {
			from = Serve
		}
		if phase.Reached(from) {
			signer = r.next[l.ca]
		}
		cert := readCert(t, l.pair.Cert)
		if err := cert.CheckSignatureFrom(signer); err != nil {
			t.Errorf("%s: %s is signed by %s, want %s", phase, l.pair.Cert, cert.Issuer, signer.Subject)
		}
	}
	want := r.former[clusterCA]
	if phase.Reached(Sign) {
		want = r.next[clusterCA]
	}
	if !readCert(t, b.ClusterCA.Cert).Equal(want) {
		t.Errorf("%s: the signing CA is %s", phase, readCert(t, b.ClusterCA.Cert).Subject)
	}
	for ca, file := range map[string]string{clusterCA: b.ClusterSigner, kubeletCA: b.KubeletSigner} {
		want := r.former[ca]
		if phase.Reached(Sign) {
			want = r.next[ca]
		}
		if pair, err := tls.LoadX509KeyPair(file, file); err != nil || !pair.Leaf.Equal(want) { // as upstream's signers read it
			t.Errorf("%s: %s has not the pair of %s: %v", phase, file, want.Subject, err)
		}
	}
	if changed := ensure(t, r.opts).Changed; len(changed) > 0 {
		t.Errorf("%s: a second Ensure changed %v", phase, changed)
	}
}

// TestRotation: in each phase the right CA signs each leaf, and the right ones are trusted; keys of leaves and the one
// for service accounts stay.
func TestRotation(t *testing.T) {
	r := newRotation(t)
	keep := map[string]string{}
	for _, name := range []string{"service-account.key", "apiserver.key", "admin.key", "peer-ca.crt", "peer.crt"} {
		text, err := os.ReadFile(filepath.Join(r.dir, name))
		if err != nil {
			t.Fatal(err)
		}
		keep[name] = string(text)
	}
	for i, phase := range Phases() {
		if i > 0 {
			if err := EndRotation(r.dir); err == nil {
				t.Errorf("a rotation ended before phase %s", phase)
			}
			if err := AdvanceRotation(r.dir); err != nil {
				t.Fatal(err)
			}
		}
		if now, err := ReadRotation(r.dir); err != nil || *now != (Rotation{"x", phase}) {
			t.Fatalf("%+v, %v, want %s", now, err, phase)
		}
		r.check(t, phase)
		published, err := Published(r.dir)
		if err != nil {
			t.Fatal(err)
		}
		if first, err := parseCert(published); err != nil || readCert(t, filepath.Join(r.dir, "apiserver.crt")).CheckSignatureFrom(first) != nil {
			t.Errorf("%s: the first published CA is %v, %v", phase, first.Subject, err)
		}
	}
	if err := EndRotation(r.dir); err != nil {
		t.Fatal(err)
	}
	r.check(t, Drop)
	contents := dirContents(t, r.dir) // fails if former/ or next/ are there
	for name, text := range keep {
		if contents[name] != text {
			t.Errorf("%s changed", name)
		}
	}
	for name := range contents {
		if strings.HasPrefix(name, "rotation") {
			t.Errorf("%s is left", name)
		}
	}
}

// TestRotationAfterCrash: a server that died while it moved to a phase goes on with it, wherever that was.
func TestRotationAfterCrash(t *testing.T) {
	r := newRotation(t)
	for i, phase := range Phases() {
		if i > 0 {
			if err := AdvanceRotation(r.dir); err != nil {
				t.Fatal(err)
			}
		}
		for _, damage := range rotated() { // the certificate is new, and the key not yet
			text, err := os.ReadFile(filepath.Join(r.dir, formerDir, damage+".key"))
			if err != nil {
				t.Fatal(err)
			}
			other, err := os.ReadFile(filepath.Join(r.dir, nextDir, damage+".crt"))
			if err := errors.Join(err, os.WriteFile(filepath.Join(r.dir, damage+".key"), text, 0o600), os.WriteFile(filepath.Join(r.dir, damage+".crt"), other, 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		r.check(t, phase)
	}
	// Directories without rotation.json are of a rotation that had not begun, or had ended.
	if err := os.Remove(filepath.Join(r.dir, rotationFile)); err != nil {
		t.Fatal(err)
	}
	ensure(t, r.opts)
	dirContents(t, r.dir)
}

// TestBeginRotation: a rotation whose CAs have signed nothing may be replaced, another one not.
func TestBeginRotation(t *testing.T) {
	r := newRotation(t)
	other, err := NewCAs("y", day0)
	if err != nil {
		t.Fatal(err)
	}
	if err := BeginRotation(r.dir, "x", other); err != nil { // again
		t.Fatal(err)
	}
	if kept, err := NextCAs(r.dir, "x"); err != nil || bytes.Equal(kept["cluster-ca.crt"], other["cluster-ca.crt"]) {
		t.Errorf("a rotation that began twice got other CAs: %v", err)
	}
	if err := BeginRotation(r.dir, "y", other); err != nil {
		t.Fatal(err)
	}
	if _, err := NextCAs(r.dir, "x"); err == nil {
		t.Error("the CAs of a replaced rotation are there")
	}
	if kept, err := NextCAs(r.dir, "y"); err != nil || !maps.EqualFunc(kept, other, bytes.Equal) {
		t.Errorf("other CAs than those given: %v", err)
	}
	ensure(t, r.opts)
	if err := AdvanceRotation(r.dir); err != nil {
		t.Fatal(err)
	}
	if err := BeginRotation(r.dir, "x", other); err == nil || !strings.Contains(err.Error(), "finish it first") {
		t.Errorf("error %v", err)
	}
	delete(other, "kubelet-ca.key")
	if err := BeginRotation(t.TempDir(), "z", other); err == nil || !strings.Contains(err.Error(), "lack kubelet-ca.key") {
		t.Errorf("error %v", err)
	}
}

// TestRotationOfNewServer: a server that joins in the middle has the same CAs in the same phase.
func TestRotationOfNewServer(t *testing.T) {
	r := newRotation(t)
	if err := AdvanceRotation(r.dir); err != nil {
		t.Fatal(err)
	}
	ensure(t, r.opts)
	files, err := Shared(r.dir, ForServer)
	if err != nil {
		t.Fatal(err)
	}
	other := *r
	other.dir = filepath.Join(t.TempDir(), "tls")
	other.opts.Dir = other.dir
	if err := Place(other.dir, files, ForServer); err != nil {
		t.Fatal(err)
	}
	other.check(t, Sign)
}

// TestServerClientOfRotation: a server can show a certificate of either CA.
func TestServerClientOfRotation(t *testing.T) {
	r := newRotation(t)
	ensure(t, r.opts)
	for name, tc := range map[string]struct {
		signed func(string, string, time.Time) (tls.Certificate, *x509.CertPool, error)
		by     *x509.Certificate
	}{
		"the current": {ServerClient, r.former[clusterCA]}, "the former": {FormerServerClient, r.former[clusterCA]}, "the next": {NextServerClient, r.next[clusterCA]},
	} {
		pair, roots, err := tc.signed(r.dir, "n", day0)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil || cert.CheckSignatureFrom(tc.by) != nil {
			t.Errorf("%s: %v, signed by %s", name, err, cert.Issuer)
		}
		for _, ca := range []*x509.Certificate{r.former[clusterCA], r.next[clusterCA]} {
			if _, err := ca.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: day0}); err != nil {
				t.Errorf("%s: an API of %s is not trusted", name, ca.Subject)
			}
		}
	}
}
