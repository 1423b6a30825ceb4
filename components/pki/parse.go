package pki

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// parseCert reads the first certificate of a PEM file; what follows it, such as a chain, is ignored.
func parseCert(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("it holds no PEM block")
	}
	if block.Type != "CERTIFICATE" {
		return nil, fmt.Errorf("it holds a %s, not a certificate", block.Type)
	}
	return x509.ParseCertificate(block.Bytes)
}

// parseKey reads a private key of any usual kind, so that a CA made elsewhere can be used.
func parseKey(data []byte) (crypto.Signer, error) {
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		var key any
		var err error
		switch block.Type {
		case "EC PRIVATE KEY":
			key, err = x509.ParseECPrivateKey(block.Bytes)
		case "RSA PRIVATE KEY":
			key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
		case "PRIVATE KEY":
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
		default: // such as EC PARAMETERS
			continue
		}
		if err != nil {
			return nil, err
		}
		if signer, ok := key.(crypto.Signer); ok {
			return signer, nil
		}
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return nil, errors.New("it holds no private key")
}

func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// ValidFrom is when the cluster's CA in this directory begins to be valid, and its path. The time is zero when there is no
// certificate that can be read, of which Ensure complains.
func ValidFrom(dir string) (path string, from time.Time) {
	path = filepath.Join(dir, "cluster-ca.crt")
	data, err := os.ReadFile(path)
	if err != nil {
		return path, time.Time{}
	}
	cert, err := parseCert(data)
	if err != nil {
		return path, time.Time{}
	}
	return path, cert.NotBefore
}
