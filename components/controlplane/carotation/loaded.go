package carotation

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"time"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/pki"
)

// probeTimeout bounds a request to this server's own API.
const probeTimeout = 5 * time.Second

// loaded reports whether the API server of this process does what the phase requires: it reads its files a moment after
// they were written.
func (s *Server) loaded(ctx context.Context, phase pki.Phase) bool {
	switch phase {
	case pki.Trust, pki.Sign:
		status, _ := s.probe(ctx, pki.NextServerClient)
		return status != 0 && status != http.StatusUnauthorized
	case pki.Serve:
		trusted, err := pki.ReadTrusted(s.opts.Dir)
		if err != nil {
			return false
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(trusted.Signing)
		_, leaf := s.probe(ctx, pki.NextServerClient)
		if leaf == nil {
			return false
		}
		_, err = leaf.Verify(x509.VerifyOptions{Roots: roots})
		return err == nil
	case pki.Drop:
		status, _ := s.probe(ctx, pki.FormerServerClient)
		return status == http.StatusUnauthorized
	}
	return false
}

// probe sends a request to the API of this server, with a certificate that signed issues. It returns the status and the
// certificate of the API; 0 and nil without an answer.
func (s *Server) probe(
	ctx context.Context, signed func(dir, name string, now time.Time) (tls.Certificate, *x509.CertPool, error),
) (status int, leaf *x509.Certificate) {
	cert, roots, err := signed(s.opts.Dir, s.opts.NodeName, time.Now())
	if err != nil {
		return 0, nil
	}
	transport := client.ServerTransport(roots)
	// Sent whatever CAs the server names: the server has to report whether it accepts the certificate.
	transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	caller := http.Client{Timeout: probeTimeout, Transport: transport}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.opts.URL+"/version", nil)
	if err != nil {
		return 0, nil
	}
	response, err := caller.Do(req)
	if err != nil {
		return 0, nil
	}
	defer response.Body.Close()
	return response.StatusCode, response.TLS.PeerCertificates[0]
}
