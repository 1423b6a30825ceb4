package join

import (
	"encoding/base64"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"

	"kubelith.io/kubelith/components/cluster/token"
)

// FuzzPinned reads the cluster-info that a stranger answers with: no other CA than the token's is ever trusted.
func FuzzPinned(f *testing.F) {
	const hash = "0000000000000000000000000000000000000000000000000000000000000000"
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("no certificate")})
	kubeconfig := "apiVersion: v1\nkind: Config\nclusters:\n- name: ''\n  cluster:\n    server: https://a\n    certificate-authority-data: "
	f.Add(kubeconfig+base64.StdEncoding.EncodeToString(block)+"\n", hash)
	f.Add(kubeconfig+"AAAA\n", "")
	f.Add(`{"clusters":[{"name":"a"}]}`, hash)
	f.Add("clusters: null", hash)
	f.Add("", "")
	f.Fuzz(func(t *testing.T, kubeconfig, hash string) {
		ca, err := pinned(kubeconfig, hash)
		if err == nil && (ca == nil || token.SPKIHash(ca) != hash) {
			t.Errorf("another CA than the token's is trusted")
		}
	})
}

// FuzzLoad reads what an earlier join has stored, damaged in any way: the error says so, and nothing panics.
func FuzzLoad(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"), []byte("{}"), []byte("[]"))
	f.Add([]byte(""), []byte(""), []byte("null"))
	f.Fuzz(func(t *testing.T, pair, settings, servers []byte) {
		s := store{t.TempDir()}
		if err := os.MkdirAll(s.pki(), 0o700); err != nil {
			t.Fatal(err)
		}
		for path, content := range map[string][]byte{s.clientCert(): pair, s.ca(): pair, s.settings(): settings, s.servers(): servers} {
			if err := os.WriteFile(path, content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if m, err := s.load(); m == nil && err == nil {
			t.Errorf("%s is not there", filepath.Base(s.clientCert()))
		}
	})
}
