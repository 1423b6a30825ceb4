package client

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"
)

const (
	// freeWrites and freeBurst are how many writes a second, and at once, a client may send whatever is under way: as
	// upstream's limits for the scheduler. Those for the controller-manager are 20 and 30.
	freeWrites, freeBurst = 50, 100
	// leastWrites is how many more a client may have under way on a machine with few processors.
	leastWrites = 2
	// paceFor is how long one of these counts. One that takes longer probably waits for something other than a
	// processor (a disk, a webhook), and must not keep others waiting.
	paceFor = 40 * time.Millisecond
)

// Paced returns the clients of components that would otherwise write hundreds of objects at once, as the ReplicaSet
// controller does with pods. What upstream's limits for the scheduler let pass passes. Beyond that, a client has as
// many writes under way as there are processors: more would end no sooner, and everybody else's requests would queue
// among them. The clients of one configuration count as one.
//
// Reads, watches among them, are as they were.
func Paced(all Identities) Identities { return Configured(all, pace) }

func pace(c *rest.Config) *rest.Config {
	free := flowcontrol.NewTokenBucketRateLimiter(freeWrites, freeBurst)
	slots := make(chan struct{}, max(leastWrites, runtime.GOMAXPROCS(0)))
	c.Wrap(func(next http.RoundTripper) http.RoundTripper { return pacer{next, free, slots} })
	return c
}

// pacer has no more writes under way than fit into slots, besides those that are free.
type pacer struct {
	next  http.RoundTripper
	free  flowcontrol.PassiveRateLimiter
	slots chan struct{}
}

// RoundTrip implements http.RoundTripper.
func (p pacer) RoundTrip(r *http.Request) (*http.Response, error) {
	if IsRead(r) || p.free.TryAccept() {
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
