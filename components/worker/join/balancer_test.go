package join

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
)

// tlsServer accepts connections and counts them.
type tlsServer struct {
	net.Listener
	accepted atomic.Int32
	mu       sync.Mutex
	conns    []net.Conn
	done     sync.WaitGroup
}

func newTLSServer(t *testing.T, ca *authority) *tlsServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &tlsServer{Listener: l}
	config := &tls.Config{Certificates: []tls.Certificate{*ca.pair(t, pkix.Name{CommonName: "x"}, time.Now().Add(time.Hour), serverName)}}
	s.done.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			s.accepted.Add(1)
			c := tls.Server(raw, config)
			s.mu.Lock()
			s.conns = append(s.conns, c)
			s.mu.Unlock()
			s.done.Go(func() { io.Copy(io.Discard, c) })
		}
	})
	t.Cleanup(s.stop)
	return s
}

func (s *tlsServer) address() string { return s.Addr().String() }

func (s *tlsServer) stop() {
	s.Close()
	s.mu.Lock()
	for _, c := range s.conns {
		c.Close()
	}
	s.mu.Unlock()
	s.done.Wait()
}

func testBalancer(ca *authority, given string, servers ...string) (*balancer, *tls.Config) {
	quiet := logrus.New()
	quiet.SetOutput(io.Discard)
	roots := x509.NewCertPool()
	roots.AddCert(ca.cert)
	return newBalancer(given, servers, quiet), &tls.Config{RootCAs: roots, ServerName: serverName}
}

func mustDial(t *testing.T, b *balancer, config *tls.Config) net.Conn {
	t.Helper()
	c, err := b.dial(t.Context(), config, t)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// closedByUs reports whether the connection was closed here.
func closedByUs(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return err != nil && strings.Contains(err.Error(), "use of closed network connection")
}

// The given server is used until it is dead; then the next one, and it stays with that.
func TestBalancerDeadServer(t *testing.T) {
	ca := newAuthority(t)
	given, second := newTLSServer(t, ca), newTLSServer(t, ca)
	b, config := testBalancer(ca, given.address(), second.address())
	mustDial(t, b, config)
	if second.accepted.Load() != 0 {
		t.Error("the stored server went first")
	}
	given.stop()
	mustDial(t, b, config)
	mustDial(t, b, config)
	if n := second.accepted.Load(); n != 2 {
		t.Errorf("%d connections to the second server, want 2", n)
	}
	if b.order()[0] != second.address() {
		t.Errorf("order %v", b.order())
	}
	second.stop()
	_, err := b.dial(t.Context(), config, t)
	if err == nil || !strings.Contains(err.Error(), given.address()) || !strings.Contains(err.Error(), second.address()) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v", err)
	}
}

// A server that cannot prove to be of the cluster is not used: another machine may have its old address now.
func TestBalancerForeignServer(t *testing.T) {
	ca := newAuthority(t)
	foreign, server := newTLSServer(t, newAuthority(t)), newTLSServer(t, ca)
	b, config := testBalancer(ca, foreign.address(), server.address())
	mustDial(t, b, config)
	if server.accepted.Load() != 1 || b.order()[0] != server.address() {
		t.Errorf("%d connections, order %v", server.accepted.Load(), b.order())
	}
}

// Connections to a server that the cluster has no longer are closed, others stay; no server at all changes nothing.
func TestBalancerRemovedServer(t *testing.T) {
	ca := newAuthority(t)
	given, second, third := newTLSServer(t, ca), newTLSServer(t, ca), newTLSServer(t, ca)
	b, config := testBalancer(ca, given.address())
	toGiven := mustDial(t, b, config)
	if !b.set([]string{second.address(), third.address()}) || closedByUs(toGiven) {
		t.Error("the given server is no longer used")
	}
	given.stop()
	toSecond := mustDial(t, b, config)
	if b.set(nil) || b.set([]string{second.address(), third.address()}) || closedByUs(toSecond) {
		t.Error("nothing new changed something")
	}
	b.set([]string{third.address()})
	if !closedByUs(toSecond) {
		t.Error("the connection to the removed server stays")
	}
	toThird := mustDial(t, b, config)
	if second.accepted.Load() != 1 || third.accepted.Load() != 1 {
		t.Errorf("connections: second %d, third %d", second.accepted.Load(), third.accepted.Load())
	}
	if want := []string{third.address(), given.address()}; !slices.Equal(b.order(), want) {
		t.Errorf("order %v, want %v: the given one is the last resort", b.order(), want)
	}
	b.closeSilent(0)
	if !closedByUs(toThird) || b.count(t) != 0 {
		t.Error("connections are left")
	}
}

// Only a silent connection is closed: one that gets an answer, even an unwelcome one, stays.
func TestBalancerSilent(t *testing.T) {
	ca := newAuthority(t)
	server := newTLSServer(t, ca)
	b, config := testBalancer(ca, server.address())
	silent, lively := mustDial(t, b, config), mustDial(t, b, config)
	for c := range b.conns {
		if heard := time.Duration(c.heard.Load()); heard > time.Since(b.began) {
			t.Errorf("heard %s after the beginning: the clock of the machine, which may be set", heard)
		}
		c.heard.Add(-int64(time.Minute))
	}
	server.mu.Lock()
	for _, c := range server.conns {
		if c.RemoteAddr().String() == lively.LocalAddr().String() {
			if _, err := c.Write([]byte("x")); err != nil {
				t.Error(err)
			}
		}
	}
	server.mu.Unlock()
	if _, err := lively.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	b.closeSilent(silentFor)
	if !closedByUs(silent) || closedByUs(lively) {
		t.Errorf("closed: silent %v, lively %v", closedByUs(silent), closedByUs(lively))
	}
}

// A request that is given up does not try the rest of the servers.
func TestBalancerCancelled(t *testing.T) {
	ca := newAuthority(t)
	server := newTLSServer(t, ca)
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never sends a byte
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	b, config := testBalancer(ca, silent.Addr().String(), server.address())
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := b.dial(ctx, config, t); err == nil {
		t.Error("connected")
	}
	if server.accepted.Load() != 0 || b.count(t) != 0 {
		t.Errorf("%d connections to the next, %d kept", server.accepted.Load(), b.count(t))
	}
}

// TestTurnsFromServer: a server that answers reads from its cache and fails writes, as one without a majority of etcd,
// is left for the next one, and only so often.
func TestTurnsFromServer(t *testing.T) {
	ca := newAuthority(t)
	serve := func(code int) string {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method != http.MethodGet {
				w.WriteHeader(code)
			}
		}))
		s.TLS = &tls.Config{Certificates: []tls.Certificate{*ca.pair(t, pkix.Name{CommonName: "x"}, time.Now().Add(time.Hour), serverName)}}
		s.EnableHTTP2 = true
		s.StartTLS()
		t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
		return s.Listener.Addr().String()
	}
	bad, good := serve(http.StatusInternalServerError), serve(http.StatusOK)
	dead := newTLSServer(t, ca)
	dead.stop()
	b, _ := testBalancer(ca, bad, bad, dead.address(), good) // the next one may be away
	way := newTransport(b, []*x509.Certificate{ca.cert}, nil)
	t.Cleanup(way.close)
	expect := func(method string, want int) {
		t.Helper()
		waitFor(t, fmt.Sprintf("status %d of a %s", want, method), func() bool {
			request, err := http.NewRequestWithContext(t.Context(), method, "https://"+serverName+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			response, err := way.RoundTrip(request)
			if err != nil { // a connection that was just closed
				return false
			}
			response.Body.Close()
			if response.StatusCode != want {
				t.Errorf("%s: status %d, want %d", method, response.StatusCode, want)
			}
			return true
		})
	}
	for range failedRequests + 1 {
		expect(http.MethodPut, http.StatusInternalServerError) // not for long yet
	}
	long := func() {
		way.mu.Lock()
		defer way.mu.Unlock()
		way.failed, way.failing = failedRequests, time.Now().Add(-failingFor)
	}
	long()
	expect(http.MethodGet, http.StatusOK)
	expect(http.MethodPut, http.StatusInternalServerError) // the last
	expect(http.MethodPut, http.StatusOK)
	if way.failed != 0 {
		t.Errorf("after a write that succeeded, %d have failed", way.failed)
	}
	b.mu.Lock()
	b.current = bad // a moment after the last
	b.mu.Unlock()
	b.closeSilent(0)
	long()
	expect(http.MethodPut, http.StatusInternalServerError)
	expect(http.MethodPut, http.StatusInternalServerError)
	b.mu.Lock()
	b.left = time.Now().Add(-leaveEvery)
	b.mu.Unlock()
	long()
	expect(http.MethodPut, http.StatusInternalServerError)
	expect(http.MethodPut, http.StatusOK)
}
