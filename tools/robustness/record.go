package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"golang.org/x/time/rate"
)

const (
	// clientsPerMember ask one member each. One more asks all.
	clientsPerMember = 2
	// requestsPerSecond are those of all clients: the servers have other work, and share a machine. The search for an
	// order of 6,000 operations, at 60 a second, took between seconds and two minutes.
	requestsPerSecond = 30
	keys              = 10
	// settled bounds how long the members may take, once all of them run, to write, and to tell it to the watches.
	settled = 2 * time.Minute
)

// recorder runs clients and watches of the members.
type recorder struct {
	prefix  string // of the keys
	clients *client.ClientSet
	closing *client.RecordingClient // asks all members

	finish   chan struct{}
	traffic  sync.WaitGroup
	watchers []*watcher
	watching sync.WaitGroup
	quit     context.CancelFunc // of the watches
}

// newRecorder starts as many requests per second, of all clients together.
func newRecorder(ctx context.Context, prefix string, members []member, requests int) (*recorder, error) {
	ids := identity.NewIDProvider()
	r := &recorder{prefix: prefix, clients: client.NewSet(ids, time.Now()), finish: make(chan struct{})}
	var endpoints []string
	for _, m := range members {
		endpoints = append(endpoints, "unix://"+m.socket)
	}
	var err error
	if r.closing, err = r.clients.NewClient(endpoints); err != nil {
		return nil, err
	}
	// The validators want to see that there is nothing at first.
	first, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	nothing, err := r.closing.Range(first, prefix, clientv3.GetPrefixRangeEnd(prefix), 0, 0, false)
	if err != nil {
		return nil, fmt.Errorf("no member answers: %w", err)
	}
	watches, quit := context.WithCancel(ctx)
	r.quit = quit
	for _, endpoint := range endpoints {
		c, err := r.clients.NewClient([]string{endpoint})
		if err != nil {
			return nil, err
		}
		w := &watcher{client: c, seen: make(chan struct{}, 1), revision: nothing.Header.Revision}
		r.watchers = append(r.watchers, w)
		r.watching.Go(func() { w.run(watches, prefix) })
	}
	traffic.RequestTimeout = time.Second // 200 ms are too short for a slow disk on a busy machine
	params := traffic.RunTrafficLoopParam{
		QPSLimiter:                         rate.NewLimiter(rate.Limit(requests), requests),
		IDs:                                ids,
		NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(3),
		KeyStore:                           traffic.NewKeyStore(keys, prefix),
		Finish:                             r.finish,
	}
	for i := range clientsPerMember*len(endpoints) + 1 {
		asks := endpoints
		if i > 0 {
			asks = []string{endpoints[i%len(endpoints)]}
		}
		c, err := r.clients.NewClient(asks)
		if err != nil {
			return nil, err
		}
		// Each of its writes puts a value that no other one has, so that the logs tell whether one without an answer
		// was done. Where that stays open the search for an order takes twice as long for each, and a fault of a minute
		// leaves a dozen.
		r.traffic.Go(func() { traffic.EtcdPut.RunKeyValueLoop(ctx, c, params) })
	}
	return r, nil
}

// stop ends the clients, and the watches once each has seen a last write.
func (r *recorder) stop(ctx context.Context) error {
	close(r.finish)
	r.traffic.Wait()
	ctx, cancel := context.WithTimeout(ctx, settled)
	defer cancel()
	var last int64
	for n := 0; last == 0; n++ {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		answer, err := r.closing.Put(attempt, r.prefix+"last", fmt.Sprintf("last-%d", n))
		cancel()
		switch {
		case err == nil:
			last = answer.Header.Revision
		case ctx.Err() != nil:
			return fmt.Errorf("no member writes %s after the last fault: %w", settled, err)
		default:
			time.Sleep(100 * time.Millisecond)
		}
	}
	for i, w := range r.watchers {
		if err := w.wait(ctx, last); err != nil {
			return fmt.Errorf("member %d does not tell its watch of the last write within %s", i, settled)
		}
	}
	r.quit()
	r.watching.Wait()
	return nil
}

// watcher watches all keys of one member, and goes on from the last revision that it saw when it is interrupted.
type watcher struct {
	client *client.RecordingClient
	seen   chan struct{}

	mu       sync.Mutex
	revision int64
}

func (w *watcher) run(ctx context.Context, prefix string) {
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		w.watch(ctx, prefix)
	}
}

func (w *watcher) watch(ctx context.Context, prefix string) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	progress := time.NewTicker(time.Second)
	defer progress.Stop()
	answers := w.client.Watch(ctx, prefix, w.last()+1, true, true, true)
	for {
		select {
		case <-progress.C:
			_ = w.client.RequestProgress(ctx) // one that fails is asked for again
		case answer, ok := <-answers:
			if !ok {
				return
			}
			if answer.Err() != nil {
				w.saw(answer.CompactRevision)
				return
			}
			if n := len(answer.Events); n > 0 {
				w.saw(answer.Events[n-1].Kv.ModRevision)
			}
		}
	}
}

func (w *watcher) last() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.revision
}

func (w *watcher) saw(revision int64) {
	w.mu.Lock()
	w.revision = max(w.revision, revision)
	w.mu.Unlock()
	select {
	case w.seen <- struct{}{}:
	default:
	}
}

func (w *watcher) wait(ctx context.Context, revision int64) error {
	for w.last() < revision {
		select {
		case <-w.seen:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
