package join

import (
	"os"
	"path/filepath"
	"testing"
)

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
