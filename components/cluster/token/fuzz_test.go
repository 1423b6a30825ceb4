package token

import (
	"strings"
	"testing"
)

// FuzzParse reads what somebody pasted as a token: a token is read as it was written, and no error repeats what may be
// a secret.
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
