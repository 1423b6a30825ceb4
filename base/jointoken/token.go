// Package jointoken has the tokens with which machines join: bootstrap tokens of Kubernetes, preceded by the hash of
// the cluster's CA.
//
// The flow is: a machine gets kube-public/cluster-info without credentials, finds the CA by Token.CAHash, checks the
// signature that upstream's bootstrap-signer (or the component token, for its own token) has added (Discover), and only
// then shows Token.Bearer. components/cluster/token publishes what it reads, components/cluster/approver decides which
// machine may have which name.
package jointoken

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"regexp"
	"strings"

	bootstrap "k8s.io/cluster-bootstrap/token/util"
)

// Token is what a machine needs to join.
type Token struct {
	// CAHash is the SPKIHash of the cluster's CA: the machine trusts no other server.
	CAHash string
	// ID is the public part: [a-z0-9]{6}.
	ID string
	// Secret is [a-z0-9]{16}.
	Secret string
}

// version begins every token. A later version may have other parts.
const version = "kl1"

// The form of a token: one word in a shell and for a double click.
var (
	form      = regexp.MustCompile(`\A` + version + `_([0-9a-f]{64})_([a-z0-9]{6})_([a-z0-9]{16})\z`)
	otherForm = regexp.MustCompile(`\Akl([2-9]|[1-9][0-9]+)_`)
)

// Parse reads the output of String; it ignores white space around it. An error is one line with what to do, and does
// not contain the secret.
func Parse(text string) (Token, error) {
	text = strings.TrimSpace(text)
	parts := form.FindStringSubmatch(text)
	switch {
	case parts != nil:
		return Token{CAHash: parts[1], ID: parts[2], Secret: parts[3]}, nil
	case text == "":
		return Token{}, errors.New("the token is empty: create one with kubelith token create on a server")
	case otherForm.MatchString(text):
		made, _, _ := strings.Cut(text, "_")
		return Token{}, fmt.Errorf("the token has format %s of a newer kubelith, and this one reads %s: install the server's version here", made, version)
	case strings.HasPrefix(text, version+"_"):
		return Token{}, errors.New("the token is incomplete: copy all of it; it ends with an _ and 16 letters and digits")
	}
	return Token{}, fmt.Errorf("this is not a kubelith token, which begins with %s_: create one with kubelith token create on a server", version)
}

// String is the form in which users copy a token. It contains the secret.
func (t Token) String() string {
	return strings.Join([]string{version, t.CAHash, t.ID, t.Secret}, "_")
}

// Bearer is the part that Kubernetes knows, for the header Authorization.
func (t Token) Bearer() string { return bootstrap.TokenFromIDAndSecret(t.ID, t.Secret) }

// SPKIHash is the SHA-256 of a certificate's public key (RawSubjectPublicKeyInfo), in hex: it stays the same when the
// certificate is renewed with the key kept.
func SPKIHash(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// IDOf returns text if it is an id, or the id of the token that it is.
func IDOf(text string) (string, error) {
	text = strings.TrimSpace(text)
	if bootstrap.IsValidBootstrapTokenID(text) {
		return text, nil
	}
	t, err := Parse(text)
	if err != nil {
		return "", errors.New("this is neither a token nor the id of one: kubelith token list shows the ids")
	}
	return t.ID, nil
}

// MakeCommand creates a token for one machine in a file, to be run on the server. The token is not on a command line,
// where other users of the machine could read it, and the shell's history would keep it.
const MakeCommand = "kubelith token create --once >token"

// Command joins a machine that has this file, to be run there.
func Command(server string) string {
	return "kubelith agent --server " + server + " --token-file token"
}

// random generates the random parts.
func random() (id, secret string, err error) {
	text, err := bootstrap.GenerateBootstrapToken()
	if err != nil {
		return "", "", err
	}
	id, secret, _ = strings.Cut(text, ".")
	return id, secret, nil
}
