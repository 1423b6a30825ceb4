package pki

import (
	"bytes"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// everyAPIServer is a name in the certificate of each API server, by which agents know it (components/join).
const everyAPIServer = "kubernetes"

// ensureKubeletTrust keeps the file with the CAs by which kubelets are known.
//
// In clusters of before, the cluster's CA has signed what kubelets serve with, and kubelets keep that until it expires. For
// them former, the cluster's CA, stays trusted for the longest life of such a certificate, but not for an API server: the
// file has a certificate of that CA which excludes the name that each of them has. Who is sent to an API server in the name
// of a kubelet, with the rights to call kubelets, turns back therefore.
func (s *store) ensureKubeletTrust(path string, ca, former *authority) error {
	current := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	old, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.HasPrefix(old, current):
		return nil
	case err == nil: // the CA was replaced: what it has signed is not trusted any more
		former = nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("pki: read the CAs of kubelets: %w", err)
	}
	ders := [][]byte{ca.cert.Raw}
	if former != nil {
		template := &x509.Certificate{
			Subject:                     former.cert.Subject,
			NotBefore:                   former.cert.NotBefore,
			NotAfter:                    earlier(s.now.Add(leafLife), former.cert.NotAfter),
			KeyUsage:                    x509.KeyUsageCertSign,
			BasicConstraintsValid:       true,
			IsCA:                        true,
			MaxPathLenZero:              true,
			PermittedDNSDomainsCritical: true, // makes all constraints critical
			ExcludedDNSDomains:          []string{everyAPIServer},
		}
		der, err := x509.CreateCertificate(rand.Reader, template, template, former.key.Public(), former.key)
		if err != nil {
			return fmt.Errorf("pki: sign %s: %w", path, err)
		}
		ders = append(ders, der)
	}
	return s.write(path, "CERTIFICATE", ders...)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
