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

// everyAPIServer is a name in the certificate of each API server, by which agents know it (components/worker/join).
const everyAPIServer = "kubernetes"

// ensureKubeletTrust keeps the file with the CAs that kubelets are verified against.
//
// In older clusters, the cluster's CA has signed the kubelets' serving certificates, and kubelets keep those until they
// expire. For them former, the cluster's CA, stays trusted for the longest life of such a certificate, but not for an
// API server: the file has a certificate of that CA that excludes the name that each API server has. So a client with
// the rights to call kubelets that is sent to an API server instead of a kubelet refuses the connection.
func (s *store) ensureKubeletTrust(path string, ca, former *authority) error {
	current := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
	old, err := os.ReadFile(path)
	switch {
	case err == nil && bytes.HasPrefix(old, current):
		return nil
	case err == nil: // the CA was replaced: certificates that it signed are no longer trusted
		former = nil
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("pki: read the kubelets' CAs: %w", err)
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
