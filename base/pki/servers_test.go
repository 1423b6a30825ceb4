package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestShared: a second server makes its own certificates with the keys of the first, and both trust each other.
func TestShared(t *testing.T) {
	first := ensure(t, options(t.TempDir(), day0))
	files, err := Shared(filepath.Dir(first.APIServer.Cert), ForServer)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tls")
	if err := Place(dir, files, ForServer); err != nil {
		t.Fatal(err)
	}
	opts := options(dir, day0)
	opts.NodeName = "node2"
	second := ensure(t, opts)
	for _, path := range slices.Collect(maps.Keys(files)) {
		if slices.Contains(second.Changed, path) {
			t.Errorf("%s was made again", path)
		}
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, info, err)
		}
	}
	roots := x509.NewCertPool()
	ca, _ := os.ReadFile(first.PeerCA.Cert)
	roots.AppendCertsFromPEM(ca)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		cert := readCert(t, second.Peer.Cert)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, DNSName: "192.0.2.7", CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
		if _, err := readCert(t, second.APIServer.Cert).Verify(x509.VerifyOptions{Roots: roots, CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{usage}}); err == nil {
			t.Error("a member of etcd trusts what is not signed for members")
		}
	}
	firstKey, _ := os.ReadFile(first.Peer.Key)
	if secondKey, _ := os.ReadFile(second.Peer.Key); bytes.Equal(firstKey, secondKey) {
		t.Error("two servers have the same key")
	}
}

func TestPlace(t *testing.T) {
	b := ensure(t, options(t.TempDir(), day0))
	files, err := Shared(filepath.Dir(b.APIServer.Cert), ForServer)
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(map[string][]byte)
		want   string
	}{
		"a key is missing": {func(f map[string][]byte) { delete(f, "cluster-ca.key") }, "lack cluster-ca.key"},
		"a strange file":   {func(f map[string][]byte) { f["../../etc/passwd"] = []byte("x") }, "unknown file"},
	} {
		changed := maps.Clone(files)
		tc.change(changed)
		dir := filepath.Join(t.TempDir(), "tls")
		if err := Place(dir, changed, ForServer); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v", name, err)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: something was written", name)
		}
	}
}

// TestPlaceAgain: a server that was away over a rotation of the CAs gets the cluster's, whatever its own files say.
func TestPlaceAgain(t *testing.T) {
	cluster := ensure(t, options(t.TempDir(), day0))
	files, err := Shared(filepath.Dir(cluster.APIServer.Cert), ForServer)
	if err != nil {
		t.Fatal(err)
	}
	away := newRotation(t) // of other CAs, which it still takes for current ones
	ensure(t, away.opts)
	if err := Place(away.dir, files, ForServer); err != nil {
		t.Fatal(err)
	}
	b := ensure(t, away.opts)
	if r, err := ReadRotation(away.dir); err != nil || r != nil {
		t.Errorf("the rotation is still %v, %v", r, err)
	}
	for _, ca := range rotated() {
		if got, err := os.ReadFile(filepath.Join(away.dir, ca+".crt")); err != nil || !bytes.Equal(got, files[ca+".crt"]) {
			t.Errorf("%s is not the cluster's, %v", ca, err)
		}
	}
	if trust, err := os.ReadFile(b.ClusterTrust); err != nil || bytes.Contains(trust, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: away.former[clusterCA].Raw})) {
		t.Error("the CA of before is still trusted")
	}
}

// TestEnsurePeer: a witness has a certificate that etcd's members trust, renews it, and never creates its own CA.
func TestEnsurePeer(t *testing.T) {
	first := ensure(t, options(t.TempDir(), day0))
	files, err := Shared(filepath.Dir(first.APIServer.Cert), ForWitness)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "tls")
	opts := options(dir, day0)
	opts.NodeName = "witness"
	if _, err := EnsurePeer(opts); err == nil || !strings.Contains(err.Error(), "peer-ca.crt is missing") {
		t.Errorf("without the CA: %v", err)
	}
	if err := Place(dir, files, ForWitness); err != nil {
		t.Fatal(err)
	}
	b, err := EnsurePeer(opts)
	if err != nil || !slices.Equal(b.Changed, []string{"peer.key", "peer.crt"}) {
		t.Fatalf("%v %v", b, err)
	}
	roots := x509.NewCertPool()
	ca, _ := os.ReadFile(first.PeerCA.Cert)
	roots.AppendCertsFromPEM(ca)
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := readCert(t, b.Peer.Cert).Verify(x509.VerifyOptions{Roots: roots, DNSName: "192.0.2.7", CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			t.Error(err)
		}
	}
	left, _ := os.ReadDir(dir)
	if len(left) != 4 {
		t.Errorf("it has %v", left)
	}
	if all, err := Inventory(dir); err != nil || len(all) != 2 {
		t.Errorf("its inventory: %v, %v", all, err)
	}
	later := day0.Add(leafLife - renewBefore)
	opts.Now = func() time.Time { return later.Add(time.Hour) }
	if b, err = EnsurePeer(opts); err != nil || !slices.Equal(b.Changed, []string{"peer.crt"}) {
		t.Errorf("a renewal: %v %v", b, err)
	}
}

func TestServerClient(t *testing.T) {
	b := ensure(t, options(t.TempDir(), day0))
	pair, roots, err := ServerClient(filepath.Dir(b.APIServer.Cert), "node-7", day0)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		t.Error(err)
	}
	if cert.Subject.CommonName != "system:kubelith:server:node-7" || !slices.Equal(cert.Subject.Organization, []string{"system:kubelith:servers"}) {
		t.Errorf("subject %v", cert.Subject)
	}
	if cert.NotAfter.Sub(day0) > serverClientLife {
		t.Errorf("valid until %s", cert.NotAfter)
	}
}
