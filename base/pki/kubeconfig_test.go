package pki

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientcmdv1 "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

func TestWriteKubeconfig(t *testing.T) {
	dir := t.TempDir()
	b := ensure(t, options(filepath.Join(dir, "tls"), day0))
	path := filepath.Join(dir, "etc", "admin.yaml")
	write := func(server string) os.FileInfo {
		t.Helper()
		if err := WriteKubeconfig(path, server, b.ClusterCA.Cert, b.Admin); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		return info
	}
	first := write("https://127.0.0.1:6443")
	data, _ := os.ReadFile(path)
	var c clientcmdv1.Config
	if err := yaml.UnmarshalStrict(data, &c); err != nil {
		t.Fatal(err)
	}
	ca, _ := os.ReadFile(b.ClusterCA.Cert)
	key, _ := os.ReadFile(b.Admin.Key)
	if c.Kind != "Config" || c.APIVersion != "v1" || c.CurrentContext != c.Contexts[0].Name ||
		c.Contexts[0].Context.Cluster != c.Clusters[0].Name || c.Contexts[0].Context.AuthInfo != c.AuthInfos[0].Name ||
		c.Clusters[0].Cluster.Server != "https://127.0.0.1:6443" || !bytes.Equal(c.Clusters[0].Cluster.CertificateAuthorityData, ca) ||
		!bytes.Equal(c.AuthInfos[0].AuthInfo.ClientKeyData, key) {
		t.Errorf("wrong content:\n%s", data)
	}
	if !os.SameFile(first, write("https://127.0.0.1:6443")) {
		t.Error("an unchanged kubeconfig was written again")
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	write("https://127.0.0.1:6443") // checks the mode
	write("https://127.0.0.1:7443")
	if data, _ := os.ReadFile(path); !strings.Contains(string(data), ":7443") {
		t.Error("a changed server was not written")
	}
	if err := WriteKubeconfig(path, "x", filepath.Join(dir, "missing"), b.Admin); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("error %v", err)
	}
}

func TestEnsureEncryption(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cred", "encryption.yaml")
	if err := EnsureEncryption(path, true); err == nil || !strings.Contains(err.Error(), "is missing") {
		t.Fatalf("a cluster with data got a new key: %v", err)
	}
	if err := EnsureEncryption(path, false); err != nil {
		t.Fatal(err)
	}
	first, _ := os.ReadFile(path)
	for _, want := range []string{"apiVersion: apiserver.config.k8s.io/v1\n", "kind: EncryptionConfiguration\n", "secretbox:", "- secrets\n", "identity: {}"} {
		if !strings.Contains(string(first), want) {
			t.Errorf("no %q in:\n%s", want, first)
		}
	}
	if strings.Index(string(first), "identity:") < strings.Index(string(first), "secretbox:") {
		t.Error("identity comes first: Secrets would be written in plain text")
	}
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if err := EnsureEncryption(path, false); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(path); !bytes.Equal(first, again) {
		t.Error("the key changed")
	}
	other := filepath.Join(t.TempDir(), "e.yaml")
	if err := EnsureEncryption(other, false); err != nil {
		t.Fatal(err)
	}
	if second, _ := os.ReadFile(other); bytes.Equal(first, second) {
		t.Error("two clusters have the same key")
	}
	for _, bad := range []string{"", "x", "kind: EncryptionConfiguration\nresources: []\n", "kind: EncryptionConfiguration\nresuorces: []\n"} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		err := EnsureEncryption(path, false)
		if err == nil || !strings.Contains(err.Error(), path+" is damaged") || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: error %v", bad, err)
		}
		if now, _ := os.ReadFile(path); string(now) != bad {
			t.Error("a damaged file was overwritten")
		}
	}
}

func TestDefaultClock(t *testing.T) {
	opts := options(t.TempDir(), day0)
	opts.Now = nil
	b := ensure(t, opts)
	if d := time.Until(readCert(t, b.ClusterCA.Cert).NotAfter) - caLife; d > time.Minute || d < -time.Minute {
		t.Errorf("the CA is off by %s", d)
	}
}
