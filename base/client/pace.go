package client

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// leastWrites is how many writes a paced client may have at once on a machine with few processors.
	leastWrites = 2
	// paceFor is how long a write counts. One that takes longer waits for something else than a processor (a disk, a
	// webhook), and must not keep others waiting: so a client writes 50 times a second, however long each takes.
	// Upstream allows its controller-manager 20 and its scheduler 50.
	paceFor = 40 * time.Millisecond
)

// Paced returns the clients of components that would otherwise write hundreds of objects at once, as the ReplicaSet
// controller does with pods. Each has as many writes at once as there are processors. More would be done no sooner, and
// each request of everybody else would wait for its turn among them.
//
// Reads, watches among them, are as they were.
func Paced(all Identities) Identities { return paced{all} }

type paced struct{ Identities }

// Config implements Identities.
func (p paced) Config(name string, groups ...string) *rest.Config {
	return pace(p.Identities.Config(name, groups...))
}

// ServiceAccountConfig implements Identities.
func (p paced) ServiceAccountConfig(namespace, name string) *rest.Config {
	return pace(p.Identities.ServiceAccountConfig(namespace, name))
}

func pace(c *rest.Config) *rest.Config {
	turns := make(chan struct{}, max(leastWrites, runtime.GOMAXPROCS(0)))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return pacer{next, turns} })
	return c
}

// pacer has no more writes under way than fit into turns.
type pacer struct {
	next  http.RoundTripper
	turns chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (p pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return p.next.RoundTrip(r)
	}
	select {
	case p.turns <- struct{}{}:
	case <-r.Context().Done():
		closeBody(r)
		return nil, context.Cause(r.Context())
	}
	done := sync.OnceFunc(func() { <-p.turns })
	defer done()
	defer time.AfterFunc(paceFor, done).Stop()
	return p.next.RoundTrip(r)
}
