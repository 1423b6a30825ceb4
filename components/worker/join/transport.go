package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
)

// serverName is in the certificate of every API server, at any address.
const serverName = client.ServerName

// transport sends requests to the API with the newest certificate of the node.
//
// A new certificate, or other CAs of the API, start a new generation of connections. A connection of the old generation
// is closed after its last request: the API server checks a certificate when a request begins, so a watch outlives the
// certificate that it began with. (client-go and the kubelet close all connections instead, and with them every watch.)
type transport struct {
	balancer *balancer

	current atomic.Pointer[generation]
	refused atomic.Bool // the server has refused the node's certificate since the last read

	mu  sync.Mutex
	cas []*x509.Certificate // of the API
	old []*generation
	// failed is how many requests have failed since the last write that succeeded, and failing when the first of them
	// did.
	failed  int
	failing time.Time
}

// generation is the connections with one certificate.
type generation struct {
	*http.Transport
	config *tls.Config
}

var _ http.RoundTripper = (*transport)(nil)

// newTransport has no client certificate when cert is nil.
func newTransport(b *balancer, cas []*x509.Certificate, cert *tls.Certificate) *transport {
	t := &transport{balancer: b, cas: cas}
	t.current.Store(t.generation(cert))
	return t
}

// generation is for one caller at a time.
func (t *transport) generation(cert *tls.Certificate) *generation {
	roots := x509.NewCertPool()
	for _, ca := range t.cas {
		roots.AddCert(ca)
	}
	config := &tls.Config{RootCAs: roots, ServerName: serverName, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
	if cert != nil {
		config.Certificates = []tls.Certificate{*cert}
	}
	g := &generation{config: config}
	// HTTP/2, with pings that find a dead server in 45 s.
	g.Transport = utilnet.SetTransportDefaults(&http.Transport{
		DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return t.balancer.dial(ctx, config, g) },
		// Set, because a proxy of the environment would be asked for the host "kubernetes".
		Proxy:               func(*http.Request) (*url.URL, error) { return nil, nil },
		MaxIdleConnsPerHost: 25,
	})
	return g
}

// RoundTrip implements http.RoundTripper. While no server is reachable a watch waits here for the next one: client-go's
// informers would wait up to a minute between tries, and see changes that late.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	g := t.current.Load()
	if isWatch(r) {
		if err := t.balancer.await(r.Context(), g.config); err != nil {
			return nil, err
		}
	}
	response, err := g.RoundTrip(r)
	if err == nil && response.StatusCode == http.StatusUnauthorized && len(g.config.Certificates) > 0 {
		t.refused.Store(true)
	}
	if !isWatch(r) {
		t.judge(r, response, err)
	}
	return response, err
}

const (
	// failedRequests and failingFor are how many requests fail, and for how long no write succeeds, before another
	// server is tried. The kubelet renews its Lease every 10 s.
	failedRequests = 3
	failingFor     = 15 * time.Second
)

// judge leaves a server that answers and cannot serve, as one without a majority of etcd. Reads that succeed prove
// nothing: such a server answers them from its cache.
func (t *transport) judge(r *http.Request, response *http.Response, err error) {
	none := unreachable(nil)
	switch {
	case errors.As(err, &none), errors.Is(err, context.Canceled): // says nothing about the server
	case err != nil || response.StatusCode >= http.StatusInternalServerError:
		if t.fails() {
			t.balancer.leave()
		}
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		t.mu.Lock()
		t.failed = 0
		t.mu.Unlock()
	}
}

// fails counts a request that has failed, and reports whether it is time to leave the server.
func (t *transport) fails() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == 0 {
		t.failing = time.Now()
	}
	t.failed++
	if t.failed < failedRequests || time.Since(t.failing) < failingFor {
		return false
	}
	t.failed = 0
	return true
}

// dialOne connects to one server, without HTTP/2.
func (t *transport) dialOne(ctx context.Context, server string) (net.Conn, error) {
	config := t.current.Load().config.Clone()
	config.NextProtos = []string{"http/1.1"}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	return (&tls.Dialer{NetDialer: &t.balancer.dialer, Config: config}).DialContext(ctx, "tcp", server)
}

func isWatch(r *http.Request) bool {
	return r.Method == http.MethodGet && strings.Contains(r.URL.RawQuery, "watch=true")
}

// CloseIdleConnections is for http.Client.
func (t *transport) CloseIdleConnections() { t.current.Load().CloseIdleConnections() }

// use sends new requests with another certificate.
func (t *transport) use(cert *tls.Certificate) {
	t.mu.Lock()
	t.old = append(t.old, t.current.Swap(t.generation(cert)))
	t.mu.Unlock()
	t.retire()
}

// trust verifies new connections with these CAs.
func (t *transport) trust(cas []*x509.Certificate) {
	t.mu.Lock()
	var cert *tls.Certificate
	if has := t.current.Load().config.Certificates; len(has) > 0 {
		cert = &has[0]
	}
	t.cas = cas
	t.old = append(t.old, t.current.Swap(t.generation(cert)))
	t.mu.Unlock()
	t.retire()
}

// trusted returns the CAs of the API.
func (t *transport) trusted() []*x509.Certificate {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.cas
}

// retire closes idle connections of old generations, and forgets generations without connections. It is called until
// all are gone.
func (t *transport) retire() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.old = slices.DeleteFunc(t.old, func(g *generation) bool {
		g.CloseIdleConnections()
		return t.balancer.count(g) == 0
	})
}

// close ends all connections.
func (t *transport) close() {
	t.current.Load().CloseIdleConnections()
	t.retire()
	t.balancer.closeSilent(0)
}

// restConfig returns a client configuration over t; agent identifies the client in the API server's log.
func restConfig(t *transport, agent string) *rest.Config {
	return &rest.Config{
		Host:      "https://" + serverName,
		Transport: t,
		QPS:       -1, // the API server's flow control is the limit
		UserAgent: "kubelith/" + agent,
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
		WarningHandler: rest.NoWarnings{},
	}
}

// PlannedConfig returns a client configuration for a component that is built and never run.
func PlannedConfig() *rest.Config { return &rest.Config{Host: "https://" + serverName} }
