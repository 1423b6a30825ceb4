package etcd

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
)

// follower is the member of a test.
type follower struct {
	leader            atomic.Uint64
	changed, stopping chan struct{}
	ending            chan struct{} // of its process
}

func (f *follower) Leader() types.ID                     { return types.ID(f.leader.Load()) }
func (f *follower) LeaderChangedNotify() <-chan struct{} { return f.changed }
func (f *follower) StoppingNotify() <-chan struct{}      { return f.stopping }

// TestAwaitLeader: a member waits for its leader, unless it has one, and no longer than it runs.
func TestAwaitLeader(t *testing.T) {
	const soon = time.Minute
	for what, c := range map[string]struct {
		leader uint64 // at first
		then   func(f *follower, stop func())
		want   bool
		within time.Duration
	}{
		"there is one":     {1, func(*follower, func()) {}, false, 0},
		"there is another": {0, func(f *follower, _ func()) { f.leader.Store(2); close(f.changed) }, true, soon},
		"the member stops": {0, func(f *follower, _ func()) { close(f.stopping) }, false, soon},
		"the process ends": {0, func(f *follower, _ func()) { close(f.ending) }, false, soon},
		"the caller stops": {0, func(_ *follower, cancel func()) { cancel() }, true, soon},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &follower{changed: make(chan struct{}), stopping: make(chan struct{}), ending: make(chan struct{})}
				f.leader.Store(c.leader)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				time.AfterFunc(soon, func() { c.then(f, cancel) })
				began := time.Now()
				if waited := awaitLeader(ctx, f, f.ending); waited != c.want || time.Since(began) != c.within {
					t.Errorf("%t after %s, want %t after %s", waited, time.Since(began), c.want, c.within)
				}
			})
		})
	}
}
