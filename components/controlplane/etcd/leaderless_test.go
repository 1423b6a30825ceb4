package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLeaderless: only a process that stops gives up on requests, and only when there has been no leader for longer
// than an election.
func TestLeaderless(t *testing.T) {
	const never = time.Hour
	for what, c := range map[string]struct {
		ending      time.Duration
		from, until time.Duration // there is no leader
		want        time.Duration // until requests end; 0: they do not
	}{
		"it goes on":          {never, 0, never, 0},
		"a leader":            {time.Second, never, never, 0},
		"none when it stops":  {time.Second, 0, never, time.Second + leaderlessAfter},
		"lost while it stops": {time.Second, 2500 * time.Millisecond, never, 2500*time.Millisecond + leaderlessAfter},
		"an election":         {time.Second, 2 * time.Second, 4 * time.Second, 0},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				ending, began := make(chan struct{}), time.Now()
				if c.ending != never {
					time.AfterFunc(c.ending, func() { close(ending) })
				}
				over := leaderless(ctx, ending, func() bool {
					since := time.Since(began)
					return since < c.from || since >= c.until
				})
				select {
				case <-over.Done():
				case <-time.After(time.Minute):
				}
				took := time.Since(began)
				if c.want == 0 && over.Err() != nil || c.want != 0 && (took-c.want).Abs() > 2*leaderlessEvery {
					t.Errorf("%v after %s, want %s", context.Cause(over), took, c.want)
				}
				if c.want != 0 && !errors.Is(context.Cause(over), errLeaderless) {
					t.Error(context.Cause(over))
				}
				cancel()
				synctest.Wait()
			})
		})
	}
}
