package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"
)

// servingTimeout bounds the wait for a serving certificate. The server signs it within seconds; while it is away, the node
// runs its pods without.
const servingTimeout = time.Minute

// awaitReady calls ready when the kubelet's health endpoint says ok and it has a serving certificate.
func (s *Server) awaitReady(ctx context.Context, ready func()) {
	if !s.awaitHealthy(ctx) {
		return
	}
	if s.opts.requestsServing() && !s.awaitServing(ctx) && ctx.Err() == nil {
		s.opts.Log.Warnf("no serving certificate after %s: logs and exec do not work yet; kubectl get csr on the server shows why", servingTimeout)
	}
	if ctx.Err() == nil {
		ready()
	}
}

// awaitHealthy asks the health endpoint until it says ok. With the endpoint switched off (--kubelet-arg=healthz-port=0) it
// asks nothing.
func (s *Server) awaitHealthy(ctx context.Context) bool {
	if s.upstream.HealthzPort == 0 {
		return true
	}
	url := fmt.Sprintf("http://%s/healthz", net.JoinHostPort(s.upstream.HealthzBindAddress, strconv.Itoa(int(s.upstream.HealthzPort))))
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return poll(ctx, 20*time.Millisecond, func() bool {
		r, err := client.Get(url)
		if err != nil {
			return false
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
}

// awaitServing connects to the kubelet's port until a TLS handshake succeeds, which takes a certificate.
func (s *Server) awaitServing(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, servingTimeout)
	defer cancel()
	host := s.upstream.Address
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1" // also where all addresses of both families are listened on
	}
	// Whose certificate it is does not matter here: the API server verifies it.
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}
	return poll(ctx, 500*time.Millisecond, func() bool {
		c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(s.upstream.Port))))
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
}

// poll calls done until it is true or ctx ends, and tells which.
func poll(ctx context.Context, every time.Duration, done func() bool) bool {
	for ctx.Err() == nil {
		if done() {
			return true
		}
		select {
		case <-time.After(every):
		case <-ctx.Done():
		}
	}
	return false
}
