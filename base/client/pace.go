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
	// leastWrites is how many writes a client may have under way on a machine with few processors.
	leastWrites = 2
	// paceFor is how long a write counts. One that takes longer probably waits for something other than a processor (a
	// disk, a webhook), and must not keep others waiting. So a client always writes 50 times a second, as fast as each
	// of the scheduler's clients upstream; the controller-manager's write 20 times.
	paceFor = 40 * time.Millisecond
)

// Paced returns the clients of components that would otherwise write hundreds of objects at once, as the ReplicaSet
// controller does with pods. Each client has as many writes under way as there are processors. More would end no
// sooner, and everybody else's requests would queue among them. The clients of one configuration count as one.
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
	slots := make(chan struct{}, max(leastWrites, runtime.GOMAXPROCS(0)))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return pacer{next, slots} })
	return c
}

// pacer has no more writes under way than fit into slots.
type pacer struct {
	next  http.RoundTripper
	slots chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (p pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return p.next.RoundTrip(r)
	}
	select {
	case p.slots <- struct{}{}:
	case <-r.Context().Done():
		closeBody(r)
		return nil, context.Cause(r.Context())
	}
	done := sync.OnceFunc(func() { <-p.slots })
	defer done()
	defer time.AfterFunc(paceFor, done).Stop()
	return p.next.RoundTrip(r)
}
