package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

var day0 = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

func options(dir string, now time.Time) Options {
	return Options{
		Dir: dir, NodeName: "node1", NodeIPs: []net.IP{net.ParseIP("192.0.2.7"), net.ParseIP("2001:db8::7")},
		SANs: []string{"api.example", "192.0.2.99"}, ServiceIPs: []net.IP{net.ParseIP("10.43.0.1")},
		ClusterDomain: "cluster.local", Now: func() time.Time { return now },
	}
}

func ensure(t *testing.T, opts Options) *Bundle {
	t.Helper()
	b, err := Ensure(opts)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func readCert(t *testing.T, path string) *x509.Certificate {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := parseCert(data)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}

func dirContents(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(data)
	}
	return out
}

func TestFirstStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tls")
	b := ensure(t, options(dir, day0))
	for name := range dirContents(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v", name, info.Mode(), err)
		}
		if !slices.Contains(b.Changed, name) {
			t.Errorf("%s is not in Changed", name)
		}
	}
	if info, _ := os.Stat(dir); info.Mode().Perm() != 0o700 {
		t.Errorf("directory has mode %v", info.Mode())
	}
	for _, tc := range []struct {
		pair, ca Pair
		subject  string
		usage    x509.ExtKeyUsage
		verify   []string // names that it must be valid for
	}{
		{b.APIServer, b.ClusterCA, "CN=kube-apiserver", x509.ExtKeyUsageServerAuth, []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc",
			"kubernetes.default.svc.cluster.local", "localhost", "node1", "192.0.2.7", "2001:db8::7", "127.0.0.1", "::1", "10.43.0.1", "api.example", "192.0.2.99"}},
		{b.KubeletClient, b.ClusterCA, "CN=kube-apiserver-kubelet-client", x509.ExtKeyUsageClientAuth, nil},
		{b.FrontProxyClient, b.FrontProxyCA, "CN=front-proxy-client", x509.ExtKeyUsageClientAuth, nil},
		{b.KubeletServer, b.KubeletCA, "CN=system:node:node1,O=system:nodes", x509.ExtKeyUsageServerAuth, []string{"node1", "192.0.2.7", "2001:db8::7"}},
		{b.Admin, b.ClusterCA, "CN=kubelith-admin,O=kubelith:admins", x509.ExtKeyUsageClientAuth, nil},
	} {
		cert, ca := readCert(t, tc.pair.Cert), readCert(t, tc.ca.Cert)
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		vo := x509.VerifyOptions{Roots: roots, CurrentTime: day0, KeyUsages: []x509.ExtKeyUsage{tc.usage}}
		if _, err := cert.Verify(vo); err != nil {
			t.Errorf("%s: %v", tc.pair.Cert, err)
		}
		if cert.Subject.String() != tc.subject {
			t.Errorf("%s: subject %s, want %s", tc.pair.Cert, cert.Subject, tc.subject)
		}
		for _, n := range tc.verify {
			if err := cert.VerifyHostname(n); err != nil {
				t.Errorf("%s: %v", tc.pair.Cert, err)
			}
		}
		if life := cert.NotAfter.Sub(day0); life != leafLife {
			t.Errorf("%s: lives %s", tc.pair.Cert, life)
		}
		if life := ca.NotAfter.Sub(day0); life != caLife {
			t.Errorf("%s: lives %s", tc.ca.Cert, life)
		}
	}
	key, err := os.ReadFile(b.ServiceAccountKey)
	if err != nil {
		t.Fatal(err)
	}
	if k, err := parseKey(key); err != nil || reflect.TypeOf(k) != reflect.TypeFor[*ecdsa.PrivateKey]() {
		t.Errorf("service account key %T, %v", k, err)
	}
}

// TestEndOfCA: leaves that end with their CA are not signed again and again in its last days.
func TestEndOfCA(t *testing.T) {
	dir := t.TempDir()
	ensure(t, options(dir, day0))
	late := day0.Add(caLife - 24*time.Hour)
	if b := ensure(t, options(dir, late)); len(b.Changed) == 0 || !readCert(t, b.APIServer.Cert).NotAfter.Equal(day0.Add(caLife)) {
		t.Errorf("a day before the end of the CA: %v", b.Changed)
	}
	if b := ensure(t, options(dir, late.Add(time.Hour))); len(b.Changed) > 0 {
		t.Errorf("an hour later: %v", b.Changed)
	}
}

// TestShortLives: with another life, leaves are renewed when a third of it is left.
func TestShortLives(t *testing.T) {
	dir := t.TempDir()
	opts := options(dir, day0)
	opts.Life = 3 * time.Minute
	ensure(t, opts)
	for after, want := range map[time.Duration]int{119 * time.Second: 0, 121 * time.Second: 6} {
		opts.Now = func() time.Time { return day0.Add(after) }
		if b := ensure(t, opts); len(b.Changed) != want {
			t.Errorf("after %s: %v", after, b.Changed)
		}
		os.RemoveAll(dir)
		opts.Now = func() time.Time { return day0 }
		ensure(t, opts)
	}
}

func TestLaterStarts(t *testing.T) {
	leaves := []string{"admin.crt", "apiserver-kubelet-client.crt", "apiserver.crt", "front-proxy-client.crt", "kubelet-serving.crt", "peer.crt"}
	for name, tc := range map[string]struct {
		after  time.Duration
		change func(*Options)
		remove []string
		want   []string
	}{
		"nothing to do":            {},
		"91 days left":             {after: leafLife - 91*24*time.Hour},
		"89 days left":             {after: leafLife - 89*24*time.Hour, want: leaves},
		"leaves expired":           {after: 2 * leafLife, want: leaves},
		"CA soon expires":          {after: caLife - time.Hour, want: leaves},
		"made in the future":       {after: -2 * time.Minute},
		"new SAN":                  {change: func(o *Options) { o.SANs = append(o.SANs, "new.example") }, want: []string{"apiserver.crt", "peer.crt"}},
		"new SAN address":          {change: func(o *Options) { o.SANs = append(o.SANs, "192.0.2.100") }, want: []string{"apiserver.crt", "peer.crt"}},
		"SAN no longer wanted":     {change: func(o *Options) { o.SANs = nil }},
		"new node IP":              {change: func(o *Options) { o.NodeIPs = []net.IP{net.ParseIP("192.0.2.8")} }, want: []string{"apiserver.crt", "kubelet-serving.crt", "peer.crt"}},
		"new node name":            {change: func(o *Options) { o.NodeName = "n2" }, want: []string{"apiserver.crt", "kubelet-serving.crt", "peer.crt"}},
		"leaf removed":             {remove: []string{"admin.crt"}, want: []string{"admin.crt"}},
		"leaf pair removed":        {remove: []string{"admin.crt", "admin.key"}, want: []string{"admin.crt", "admin.key"}},
		"interrupted after CA key": {remove: []string{"cluster-ca.crt"}, want: []string{"cluster-ca-signer.pem", "cluster-ca.crt", "cluster-trust.crt"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ensure(t, options(dir, day0))
			before := dirContents(t, dir)
			for _, f := range tc.remove {
				os.Remove(filepath.Join(dir, f))
			}
			opts := options(dir, day0.Add(tc.after))
			if tc.change != nil {
				tc.change(&opts)
			}
			b := ensure(t, opts)
			var changed []string
			for f, data := range dirContents(t, dir) {
				if before[f] != data {
					changed = append(changed, f)
				}
			}
			slices.Sort(changed)
			slices.Sort(b.Changed)
			if !slices.Equal(changed, tc.want) || !slices.Equal(b.Changed, tc.want) {
				t.Errorf("changed %v, reported %v, want %v", changed, b.Changed, tc.want)
			}
			// Whatever happened, the next start reports nothing; near the CA's end leaves are renewed again.
			if again := ensure(t, opts); len(again.Changed) > 0 && name != "CA soon expires" {
				t.Errorf("changed again: %v", again.Changed)
			}
			ca, api := readCert(t, b.ClusterCA.Cert), readCert(t, b.APIServer.Cert)
			if err := api.CheckSignatureFrom(ca); err != nil {
				t.Error(err)
			}
			if api.NotAfter.After(ca.NotAfter) {
				t.Error("a leaf outlives its CA")
			}
		})
	}
}

func TestRefuses(t *testing.T) {
	foreignKey := func() string {
		key, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		der, _ := x509.MarshalECPrivateKey(key)
		return string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	}()
	broken := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
	for name, tc := range map[string]struct {
		after time.Duration
		files map[string]string // to write; "-" removes
		want  []string
	}{
		"garbage certificate":    {files: map[string]string{"apiserver.crt": "x"}, want: []string{"/apiserver.crt is damaged (data does not contain any valid RSA or ECDSA certificates): restore it, or remove apiserver.crt and apiserver.key to generate both again"}},
		"broken certificate":     {files: map[string]string{"apiserver.crt": broken}, want: []string{"/apiserver.crt is damaged (x509: "}},
		"key as certificate":     {files: map[string]string{"apiserver.crt": foreignKey}, want: []string{"data does not contain any valid RSA or ECDSA certificates"}},
		"empty key":              {files: map[string]string{"admin.key": ""}, want: []string{"/admin.key is damaged (data does not contain a valid RSA or ECDSA private key)"}},
		"broken key":             {files: map[string]string{"admin.key": strings.ReplaceAll(broken, "CERTIFICATE", "EC PRIVATE KEY")}, want: []string{"/admin.key is damaged (data does not contain a valid RSA or ECDSA private key)"}},
		"foreign key":            {files: map[string]string{"admin.key": foreignKey}, want: []string{"/admin.crt does not belong to the key admin.key: restore it, or remove"}},
		"missing key":            {files: map[string]string{"admin.key": "-"}, want: []string{"/admin.key is missing but its certificate admin.crt exists"}},
		"damaged CA":             {files: map[string]string{"cluster-ca.crt": ""}, want: []string{"/cluster-ca.crt is damaged", "restore both files of the pair from a backup"}},
		"damaged CA key":         {files: map[string]string{"front-proxy-ca.key": "x"}, want: []string{"/front-proxy-ca.key is damaged"}},
		"missing CA key":         {files: map[string]string{"front-proxy-ca.key": "-"}, want: []string{"/front-proxy-ca.key is missing"}},
		"new CA, old leaves":     {files: map[string]string{"front-proxy-ca.key": "-", "front-proxy-ca.crt": "-"}, want: []string{"/front-proxy-client.crt was not signed by front-proxy-ca.crt (", "remove front-proxy-client.crt and"}},
		"damaged token key":      {files: map[string]string{"service-account.key": "x"}, want: []string{"/service-account.key is damaged", "restore it"}},
		"CA expired":             {after: caLife + time.Hour, want: []string{"/cluster-ca.crt expired at 2039-12-30T00:00:00Z (the clock says 2039-12-30T01:00:00Z)"}},
		"clock before the CA":    {after: -time.Hour, want: []string{"the clock says 2029-12-31T23:00:00Z, but the CA ", "/cluster-ca.crt is valid from 2029-12-31T23:55:00Z: set the clock"}},
		"leaf in the CA's place": {files: map[string]string{"cluster-ca.crt": "=admin.crt", "cluster-ca.key": "=admin.key"}, want: []string{"/cluster-ca.crt is not the certificate of a CA"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ensure(t, options(dir, day0))
			good := dirContents(t, dir)
			for f, data := range tc.files {
				if other, ok := strings.CutPrefix(data, "="); ok {
					data = good[other]
				}
				path := filepath.Join(dir, f)
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if data == "-" {
					continue
				}
				if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := dirContents(t, dir)
			_, err := Ensure(options(dir, day0.Add(tc.after)))
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q\nlacks %q", err, w)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			for f, data := range before {
				if dirContents(t, dir)[f] != data {
					t.Errorf("%s was overwritten", f)
				}
			}
		})
	}
}

func TestCrashLeftovers(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "admin.crt.tmp"), []byte("half"), 0o644); err != nil {
		t.Fatal(err)
	}
	ensure(t, options(dir, day0))
	for f := range dirContents(t, dir) {
		if strings.HasSuffix(f, ".tmp") {
			t.Errorf("%s is left", f)
		}
	}
}

// Keys that other users can read are closed and named; unused pairs are removed.
func TestExposedAndUnused(t *testing.T) {
	dir := t.TempDir()
	ensure(t, options(dir, day0))
	unused := []string{"etcd-ca.crt", "etcd-ca.key", "etcd-server.crt", "etcd-server.key", "etcd-peer.crt", "etcd-peer.key"}
	for _, name := range unused {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("old"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exposed := filepath.Join(dir, "cluster-ca.key")
	if err := os.Chmod(exposed, 0o644); err != nil {
		t.Fatal(err)
	}
	b := ensure(t, options(dir, day0))
	if info, err := os.Stat(exposed); err != nil || info.Mode().Perm() != 0o600 || !slices.Equal(b.Exposed, []string{exposed}) || len(b.Changed) > 0 {
		t.Errorf("mode %v, exposed %q, changed %q, %v", info.Mode(), b.Exposed, b.Changed, err)
	}
	for name := range dirContents(t, dir) {
		if slices.Contains(unused, name) {
			t.Errorf("%s is left", name)
		}
	}
	if b := ensure(t, options(dir, day0)); len(b.Exposed) > 0 {
		t.Errorf("exposed again: %q", b.Exposed)
	}
}

func TestUnwritable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(options(filepath.Join(file, "tls"), day0)); err == nil || !strings.Contains(err.Error(), file) {
		t.Errorf("error %v", err)
	}
}

// TestEncryptionKeys: what is written can be read, and a file of another form is refused, not rewritten.
func TestEncryptionKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "encryption.yaml")
	if err := EnsureEncryption(path, false); err != nil {
		t.Fatal(err)
	}
	keys, err := ReadEncryption(path)
	if err != nil || len(keys) != 1 || keys[0].Name != "key1" {
		t.Fatalf("%v, %v", keys, err)
	}
	keys = append([]EncryptionKey{NewEncryptionKey("key2")}, keys...)
	if err := WriteEncryption(path, keys); err != nil {
		t.Fatal(err)
	}
	if got, err := ReadEncryption(path); err != nil || !slices.Equal(got, keys) || got[0].Secret == got[1].Secret {
		t.Errorf("%v, %v", got, err)
	}
	if err := EnsureEncryption(path, true); err != nil {
		t.Error(err)
	}
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string][2]string{
		"other resources": {"- secrets", "- secrets\n  - configmaps"}, "another resource": {"- secrets", "- configmaps"},
		"another provider": {"secretbox:", "aesgcm:"}, "no identity": {"- identity: {}", ""}, "damage": {"kind:", "kin:"},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := ReadEncryption(path); err == nil || bad == string(good) {
			t.Errorf("%s: %v\n%s", what, got, bad)
		}
	}
}
