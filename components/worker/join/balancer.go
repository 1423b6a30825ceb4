package join

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// dialTimeout and handshakeTimeout bound one attempt at one server. A dead host does not answer at all, a busy one
	// answers late.
	dialTimeout      = 3 * time.Second
	handshakeTimeout = 10 * time.Second
	keepAlive        = 15 * time.Second
	// silentFor is how long a connection with an overdue answer may receive nothing.
	silentFor = 5 * time.Second
	// probeEvery is how often to check whether a server is back.
	probeEvery = time.Second
	// leaveEvery is the least time between two servers that are left: all of them may be without a majority.
	leaveEvery = 30 * time.Second
)

// balancer connects to one of the cluster's servers: to the last one that it reached, otherwise to the next that it can
// reach and that proves to be of the cluster. The user's address is tried first until another one is in use, and last
// from then on: it may route to any of them.
//
// It does not listen. All clients of the API on an agent are in this process; pods have the Service "kubernetes".
type balancer struct {
	given  string // HOST:PORT
	log    logrus.FieldLogger
	dialer net.Dialer
	began  time.Time

	probing sync.Mutex // held by the request that checks whether a server is back

	mu      sync.Mutex
	current string
	left    time.Time // when a server was last left
	servers []string  // from the cluster
	conns   map[*conn]bool
	down    chan struct{} // closed when a server is reached again; nil while one is reachable
}

func newBalancer(given string, servers []string, log logrus.FieldLogger) *balancer {
	return &balancer{given: given, log: log, dialer: net.Dialer{Timeout: dialTimeout, KeepAlive: keepAlive}, began: time.Now(),
		current: given, servers: servers, conns: map[*conn]bool{}}
}

// dial connects. config has the CA and the name that a server must prove; owner is for count.
func (b *balancer) dial(ctx context.Context, config *tls.Config, owner any) (*tls.Conn, error) {
	var failed unreachable
	for _, server := range b.order() {
		c, err := b.dialServer(ctx, server, config, owner)
		if err == nil {
			b.reached(server)
			return c, nil
		}
		failed = append(failed, fmt.Errorf("%s: %w", server, err))
		if ctx.Err() != nil {
			return nil, failed // it is not known whether any server is reachable
		}
	}
	b.lost()
	return nil, failed
}

// await waits while no server is reachable, and ends when one is or ctx is over.
func (b *balancer) await(ctx context.Context, config *tls.Config) error {
	for {
		b.mu.Lock()
		down := b.down
		b.mu.Unlock()
		if down == nil {
			return nil
		}
		select {
		case <-down:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(probeEvery):
		}
		if b.probing.TryLock() { // one request checks for all
			if c, err := b.dial(ctx, config, nil); err == nil {
				c.Close()
			}
			b.probing.Unlock()
		}
	}
}

func (b *balancer) dialServer(ctx context.Context, server string, config *tls.Config, owner any) (*tls.Conn, error) {
	raw, err := b.dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	tracked := b.track(raw, server, owner)
	c := tls.Client(tracked, config)
	if err := c.HandshakeContext(ctx); err != nil {
		tracked.Close()
		return nil, err
	}
	return c, nil
}

// order returns the servers in the order in which they are tried.
func (b *balancer) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	after := slices.Index(b.servers, b.current) + 1
	for _, server := range slices.Concat([]string{b.current}, b.servers[after:], b.servers[:after], []string{b.given}) {
		if !slices.Contains(all, server) {
			all = append(all, server)
		}
	}
	return all
}

// known returns the servers that the cluster has, and the given one.
func (b *balancer) known() (listed []string, given string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.servers), b.given
}

func (b *balancer) lost() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down == nil {
		b.down = make(chan struct{})
	}
}

func (b *balancer) reached(server string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down != nil {
		close(b.down)
		b.down = nil
	}
	if b.current != server {
		b.log.Infof("now reaching the API at %s instead of %s", server, b.current)
		b.current = server
	}
}

// set takes the servers that the cluster has now, and closes the connections to those that it no longer has. An empty
// list comes from a server that starts: it is ignored. set reports whether anything is new.
func (b *balancer) set(servers []string) bool {
	b.mu.Lock()
	if len(servers) == 0 || slices.Equal(servers, b.servers) {
		b.mu.Unlock()
		return false
	}
	b.servers = slices.Clone(servers)
	known := func(server string) bool { return server == b.given || slices.Contains(servers, server) }
	if !known(b.current) {
		b.current = servers[0]
	}
	b.mu.Unlock()
	b.close(func(c *conn) bool { return !known(c.server) })
	return true
}

// leave turns to the next of the cluster's servers, and closes the connections to the current one.
func (b *balancer) leave() {
	b.mu.Lock()
	bad := b.current
	if len(b.servers) == 0 || time.Since(b.left) < leaveEvery {
		b.mu.Unlock()
		return
	}
	next := b.servers[(slices.Index(b.servers, bad)+1)%len(b.servers)] // the first after the given one
	if next == bad {
		b.mu.Unlock()
		return
	}
	b.log.Warnf("the server at %s answers, but cannot serve: turning to %s", bad, next)
	b.current, b.left = next, time.Now()
	b.mu.Unlock()
	b.close(func(c *conn) bool { return c.server == bad })
}

// closeSilent closes the connections that have received nothing for that long: their users get an error, and a new
// connection with the next request. Zero closes all.
func (b *balancer) closeSilent(silent time.Duration) {
	b.close(func(c *conn) bool { return time.Since(b.began)-time.Duration(c.heard.Load()) >= silent })
}

// close closes the connections that are selected. b.mu is not held: each takes it to be forgotten.
func (b *balancer) close(selected func(*conn) bool) {
	b.mu.Lock()
	var closing []*conn
	for c := range b.conns {
		if selected(c) {
			closing = append(closing, c)
		}
	}
	b.mu.Unlock()
	for _, c := range closing {
		c.Close()
	}
}

// count returns the number of open connections that were dialled for owner.
func (b *balancer) count(owner any) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		if c.owner == owner {
			n++
		}
	}
	return n
}

// conn is a connection that the balancer tracks until it is closed.
type conn struct {
	net.Conn
	server string
	owner  any
	b      *balancer
	heard  atomic.Int64 // time of the last read, in nanoseconds since the balancer began: setting the clock does not move it
}

func (b *balancer) track(raw net.Conn, server string, owner any) *conn {
	c := &conn{Conn: raw, server: server, owner: owner, b: b}
	c.heard.Store(int64(time.Since(b.began)))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns[c] = true
	return c
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.heard.Store(int64(time.Since(c.b.began)))
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.b.mu.Lock()
	delete(c.b.conns, c)
	c.b.mu.Unlock()
	return c.Conn.Close()
}

// unreachable has the error for each server.
type unreachable []error

// Error returns one line.
func (u unreachable) Error() string {
	texts := make([]string, 0, len(u))
	for _, err := range u {
		texts = append(texts, err.Error())
	}
	return "no server can be reached: " + strings.Join(texts, ", ")
}

// Unwrap supports errors.As.
func (u unreachable) Unwrap() []error { return u }
