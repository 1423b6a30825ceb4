package pki

import (
	"crypto/x509"
	"fmt"
	"os"
)

// Pool returns the certificates of a PEM file. A file without any is an error: an empty pool would refuse every peer
// and not say why.
func Pool(path string) (*x509.CertPool, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate: write it as PEM", path)
	}
	return pool, nil
}
