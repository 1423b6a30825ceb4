package kubelet

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"kubelith.io/kubelith/base/lifecycle"
)

// servingTimeout bounds the wait for a serving certificate. The server signs it within seconds; while the server is
// down, the node runs its pods without one.
const servingTimeout = time.Minute

// awaitReady calls ready when the kubelet's health endpoint answers ok and it has a serving certificate.
func (s *Server) awaitReady(ctx context.Context, ready func()) {
	if lifecycle.AwaitNeeds(ctx) != nil || !s.awaitHealthy(ctx) {
		return
	}
	if s.opts.requestsServing() && !s.awaitServing(ctx) && ctx.Err() == nil {
		s.opts.Log.Warnf("no serving certificate after %s: logs and exec do not work yet; kubectl get csr on the server shows why", servingTimeout)
	}
	if ctx.Err() == nil {
		ready()
	}
}

// awaitHealthy polls the health endpoint until it answers ok. With the endpoint disabled (--kubelet-arg=healthz-port=0)
// it does not poll.
func (s *Server) awaitHealthy(ctx context.Context) bool {
	if s.upstream.HealthzPort == 0 {
		return true
	}
	url := fmt.Sprintf("http://%s/healthz", net.JoinHostPort(s.upstream.HealthzBindAddress, strconv.Itoa(int(s.upstream.HealthzPort))))
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	return wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		r, err := client.Do(q)
		if err != nil {
			return false, nil
		}
		r.Body.Close()
		return r.StatusCode == http.StatusOK, nil
	}) == nil
}

// awaitServing connects to the kubelet's port until a TLS handshake succeeds, which needs a certificate.
func (s *Server) awaitServing(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, servingTimeout)
	defer cancel()
	host := s.upstream.Address
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "127.0.0.1" // also for wildcard addresses of either family
	}
	// The certificate is not verified here: the API server does that.
	dialer := tls.Dialer{NetDialer: &net.Dialer{Timeout: time.Second}, Config: &tls.Config{InsecureSkipVerify: true}}
	return wait.PollUntilContextCancel(ctx, 500*time.Millisecond, true, func(context.Context) (bool, error) {
		c, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(s.upstream.Port))))
		if err != nil {
			return false, nil
		}
		c.Close()
		return true, nil
	}) == nil
}
