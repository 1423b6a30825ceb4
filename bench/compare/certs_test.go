package compare

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"kubelith.io/kubelith/base/pki"
)

// clientKubeconfig creates a client certificate for the user and a kubeconfig with it, and returns its path. In
// Kubelith only the administrator has one; peers need one per program.
func clientKubeconfig(dir string, ca pki.Pair, server, user string, groups ...string) (string, error) {
	pair, err := readAuthority(ca)
	if err != nil {
		return "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return "", err
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: user, Organization: groups},
		NotBefore:    time.Now().Add(-time.Minute),
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, pair.cert, key.Public(), pair.key)
	if err != nil {
		return "", err
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", err
	}
	base := filepath.Join(dir, fmt.Sprintf("%x", serial))
	client := pki.Pair{Cert: base + ".crt", Key: base + ".key"}
	if err := os.WriteFile(client.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(client.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER}), 0o600); err != nil {
		return "", err
	}
	path := base + ".kubeconfig"
	return path, pki.WriteKubeconfig(path, server, ca.Cert, client)
}

// authority is a CA read back from its files.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func readAuthority(p pki.Pair) (authority, error) {
	var a authority
	certPEM, err := os.ReadFile(p.Cert)
	if err != nil {
		return a, err
	}
	keyPEM, err := os.ReadFile(p.Key)
	if err != nil {
		return a, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return a, fmt.Errorf("%s: not PEM", p.Cert)
	}
	if a.cert, err = x509.ParseCertificate(certBlock.Bytes); err != nil {
		return a, err
	}
	a.key, err = x509.ParseECPrivateKey(keyBlock.Bytes)
	return a, err
}
