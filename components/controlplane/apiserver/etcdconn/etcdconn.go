// Package etcdconn lets all clients of etcd of upstream's API server share one connection. Upstream makes a client
// with a connection of its own for each resource, and each connection costs a dozen goroutines, their stacks, buffers
// and keepalives (ADR 068).
package etcdconn

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for the name of upstream's variable

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	_ "k8s.io/apiserver/pkg/storage/storagebackend/factory" // has the variable
)

// newClient makes the clients of all storages, compactors and health checks from now on. It is a variable for the sake
// of upstream's tests.
//
//go:linkname newClient k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newClient func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// Share lets all clients that upstream makes from now on share a connection for each etcd. Only its first call does
// something.
var Share = sync.OnceFunc(func() {
	p := &pool{upstream: newClient, connections: map[string]*connection{}}
	newClient = p.client
})

// pool has the connections.
type pool struct {
	upstream func(storagebackend.TransportConfig) (*kubernetes.Client, error)

	mu          sync.Mutex
	connections map[string]*connection // by etcd's addresses
}

// connection is upstream's client, whose connection others use.
type connection struct {
	users  int           // of which the first makes the client
	made   chan struct{} // closed when client or err is set
	client *kubernetes.Client
	err    error
}

// client returns a client on the shared connection. Its Close ends its watches and leases, and leaves the connection to
// the others; that of the last one closes it.
func (p *pool) client(config storagebackend.TransportConfig) (*kubernetes.Client, error) {
	if config.CertFile != "" || config.KeyFile != "" || config.TrustedCAFile != "" {
		return p.upstream(config) // not the process's own etcd
	}
	address := strings.Join(config.ServerList, ",")
	p.mu.Lock()
	shared := p.connections[address]
	first := shared == nil
	if first {
		shared = &connection{made: make(chan struct{})}
		p.connections[address] = shared
	}
	shared.users++
	p.mu.Unlock()
	if first {
		shared.make(p, config)
	}
	<-shared.made
	release := func() { p.release(address, shared) }
	if shared.err != nil {
		release()
		return nil, shared.err
	}
	own, err := on(shared.client.Client, config.ServerList)
	if err != nil {
		release()
		return nil, err
	}
	context.AfterFunc(own.Ctx(), release) // its Close ends its context
	return own, nil
}

// make connects, for 20 s at most.
func (c *connection) make(p *pool, config storagebackend.TransportConfig) {
	defer close(c.made)
	c.err = errors.New("the client of etcd that others wait for was not made") // after a panic
	c.client, c.err = p.upstream(config)
}

// release closes the connection after its last user. A connection that could not be made is not used again.
func (p *pool) release(address string, c *connection) {
	p.mu.Lock()
	c.users--
	last := c.users == 0
	if (last || c.err != nil) && p.connections[address] == c {
		delete(p.connections, address)
	}
	p.mu.Unlock()
	if last && c.client != nil {
		_ = c.client.Close() // fails only for a connection that is closed
	}
}

// leaseTimeout is how long a lease is kept alive without an answer, as that of upstream's clients.
const leaseTimeout = 21 * time.Second

// on returns a client whose requests, watches and leases use the connection of another. Upstream uses nothing else of
// it but Endpoints, and Status, which makes a connection for each call. Its own connection, which gRPC has not made
// yet, is closed: it would have goroutines, and what used it would do without upstream's metrics and traces.
func on(shared *clientv3.Client, addresses []string) (*kubernetes.Client, error) {
	own, err := kubernetes.New(clientv3.Config{Endpoints: addresses, Logger: shared.GetLogger()})
	if err != nil {
		return nil, err
	}
	_ = own.ActiveConnection().Close() // fails only for a connection that is closed
	own.KV = clientv3.NewKVFromKVClient(clientv3.RetryKVClient(shared), own.Client)
	own.Watcher = clientv3.NewWatchFromWatchClient(etcdserverpb.NewWatchClient(shared.ActiveConnection()), own.Client)
	own.Lease = clientv3.NewLeaseFromLeaseClient(clientv3.RetryLeaseClient(shared), own.Client, leaseTimeout)
	return own, nil
}
