package pki

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
)

// A user's kubeconfig has an identity without groups; its certificate is renewed in its file, with the same key.
func TestEnsureUser(t *testing.T) {
	now := time.Now()
	clock := func() time.Time { return now }
	bundle, err := Ensure(Options{Dir: t.TempDir(), NodeName: "n", ClusterDomain: "cluster.local", Now: clock})
	if err != nil {
		t.Fatal(err)
	}
	opts := UserOptions{
		Dir: filepath.Join(t.TempDir(), "x"), Name: "system:kubelith:plugin:x", CA: bundle.ClusterCA,
		Server: "https://127.0.0.1:6443", UID: os.Getuid(), GID: os.Getgid(), Now: clock,
	}
	read := func() (cert *x509.Certificate, key string) {
		t.Helper()
		path, err := EnsureUser(opts)
		if err != nil {
			t.Fatal(err)
		}
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil || config.Host != opts.Server || config.CertFile == "" || len(config.CAData) == 0 {
			t.Fatalf("%+v, %v", config, err)
		}
		data, err := os.ReadFile(config.CertFile)
		if err != nil {
			t.Fatal(err)
		}
		if cert, err = parseCert(data); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{path, config.CertFile, config.KeyFile} {
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: %v, %v", file, info, err)
			}
		}
		text, err := os.ReadFile(config.KeyFile)
		if err != nil {
			t.Fatal(err)
		}
		return cert, string(text)
	}
	first, key := read()
	if first.Subject.CommonName != opts.Name || len(first.Subject.Organization) > 0 {
		t.Errorf("subject %s", first.Subject)
	}
	if again, _ := read(); again.SerialNumber.Cmp(first.SerialNumber) != 0 {
		t.Error("a valid certificate was made anew")
	}
	now = first.NotAfter.Add(-renewBefore)
	renewed, sameKey := read()
	if renewed.SerialNumber.Cmp(first.SerialNumber) == 0 || sameKey != key {
		t.Error("the certificate was not renewed, or its key was not kept")
	}
}
