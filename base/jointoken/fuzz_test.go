package jointoken

import (
	"encoding/base64"
	"encoding/pem"
	"strings"
	"testing"
)

// FuzzParse parses what a user pasted as a token: a token is read as it was written, and no error repeats what may be a
// secret.
func FuzzParse(f *testing.F) {
	hash := strings.Repeat("0a", 32)
	f.Add("kl1_" + hash + "_abcdef_0123456789abcdef")
	f.Add(" kl1_" + hash + "_abcdef_0123456789abcdef\n")
	f.Add("kl1_" + hash + "_abcdef_0123456789abcde")
	f.Add("kl2_" + hash + "_abcdef_0123456789abcdef_more")
	f.Add("abcdef.0123456789abcdef")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		if id, err := IDOf(text); err == nil && len(id) != 6 {
			t.Errorf("%q has the id %q", text, id)
		}
		parsed, err := Parse(text)
		if err == nil {
			if parsed.String() != strings.TrimSpace(text) {
				t.Errorf("%q is read as %q", text, parsed)
			}
			return
		}
		if i := strings.LastIndexByte(text, '_'); i >= 0 && len(text)-i > 16 && strings.Contains(err.Error(), text[i+1:]) {
			t.Errorf("the error for %q repeats the secret: %v", text, err)
		}
	})
}

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
		if err == nil && (ca == nil || SPKIHash(ca) != hash) {
			t.Errorf("another CA than the token's is trusted")
		}
	})
}
