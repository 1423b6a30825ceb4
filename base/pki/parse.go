package pki

import (
	"crypto"
	"crypto/x509"
	"fmt"
	"os"
	"path/filepath"
	"time"

	certutil "k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// parseCert reads the first certificate of a PEM file; the rest is a chain.
func parseCert(data []byte) (*x509.Certificate, error) {
	all, err := certutil.ParseCertsPEM(data)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

// parseKey reads a private key of any usual kind, so that a CA created elsewhere can be used.
func parseKey(data []byte) (crypto.Signer, error) {
	key, err := keyutil.ParsePrivateKeyPEM(data)
	if err != nil {
		return nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a key of type %T cannot sign", key)
	}
	return signer, nil
}

func samePublicKey(a, b crypto.PublicKey) bool {
	k, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && k.Equal(b)
}

// ValidFrom returns when the cluster's CA in this directory begins to be valid, and its path. The time is zero when
// there is no readable certificate; Ensure reports that.
func ValidFrom(dir string) (path string, from time.Time) {
	path = filepath.Join(dir, ClusterCAFile)
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
