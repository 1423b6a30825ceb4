package client

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
)

// ServerName is the name in the certificate of every server's API, whatever address it is reached at.
const ServerName = "kubernetes"

// ServerTransport returns a transport for single requests to another server's API, or to this one's from outside. It
// trusts roots, has the certificates of the caller, and uses no proxy.
func ServerTransport(roots *x509.CertPool, certificates ...tls.Certificate) *http.Transport {
	return &http.Transport{
		TLSClientConfig:   &tls.Config{Certificates: certificates, RootCAs: roots, ServerName: ServerName, MinVersion: tls.VersionTLS12},
		DisableKeepAlives: true,
	}
}
