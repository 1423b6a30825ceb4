package jointoken

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

const hash = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

var example = Token{CAHash: hash, ID: "abc123", Secret: "0123456789abcdef"}

func TestForm(t *testing.T) {
	const text = "kl1_" + hash + "_abc123_0123456789abcdef"
	if got := example.String(); got != text {
		t.Errorf("got %s, want %s", got, text)
	}
	if got := example.Bearer(); got != "abc123.0123456789abcdef" {
		t.Errorf("bearer %s", got)
	}
	for _, given := range []string{text, " " + text + "\n"} {
		if got, err := Parse(given); err != nil || got != example {
			t.Errorf("%q: %+v, %v", given, got, err)
		}
	}
	// One word, for a shell and for a double click in a terminal.
	if strings.ContainsFunc(text, func(r rune) bool {
		return r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
	}) {
		t.Errorf("%s is not one word", text)
	}
}

func TestParseRefuses(t *testing.T) {
	good := example.String()
	for name, tc := range map[string]struct{ text, want string }{
		"empty":           {" \n", "the token is empty: create one"},
		"newer":           {"kl2" + good[3:], "the token has format kl2 of a newer kubelith, and this one reads kl1: install the server's version here"},
		"much newer":      {"kl10_x", "the token has format kl10 of a newer kubelith"},
		"cut":             {good[:len(good)-1], "the token is incomplete: copy all of it"},
		"without secret":  {"kl1_" + hash + "_abc123", "the token is incomplete"},
		"upper case":      {strings.ToUpper(good), "this is not a kubelith token"},
		"two":             {good + "\n" + good, "the token is incomplete"},
		"a bootstrap one": {example.Bearer(), "this is not a kubelith token, which begins with kl1_"},
		"something else":  {"K10abc::server:secret", "this is not a kubelith token"},
		"version 0":       {"kl0_x", "this is not a kubelith token"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("error %v, want %q", err, tc.want)
			}
			if strings.Contains(err.Error(), "\n") || strings.Contains(err.Error(), example.Secret[:15]) {
				t.Errorf("not one line, or the secret is in it: %v", err)
			}
		})
	}
}

func TestIDOf(t *testing.T) {
	for _, text := range []string{"abc123", example.String(), " abc123\n"} {
		if id, err := IDOf(text); err != nil || id != "abc123" {
			t.Errorf("%q: %q, %v", text, id, err)
		}
	}
	for _, text := range []string{"", "abc12", "ABC123", example.Bearer()} {
		if id, err := IDOf(text); err == nil || strings.Contains(err.Error(), example.Secret) {
			t.Errorf("%q: %q, %v", text, id, err)
		}
	}
}

// authority creates a CA's certificate, and returns it as PEM too. With the same key it is a renewed one.
func authority(t *testing.T, key *ecdsa.PrivateKey) (*x509.Certificate, []byte) {
	t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// The hash is that of the public key, so that it survives a renewal of the certificate.
func TestSPKIHash(t *testing.T) {
	key := newKey(t)
	first, _ := authority(t, key)
	renewed, _ := authority(t, key)
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(der)
	if want := hex.EncodeToString(sum[:]); SPKIHash(first) != want || SPKIHash(renewed) != want {
		t.Errorf("%s and %s, want %s", SPKIHash(first), SPKIHash(renewed), want)
	}
	if other, _ := authority(t, newKey(t)); SPKIHash(other) == SPKIHash(first) {
		t.Error("two keys have one hash")
	}
}
