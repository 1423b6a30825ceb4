package etcd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

// leaders is the leadership of a test.
type leaders struct {
	changed chan struct{}
	read    error
}

func (l leaders) LeaderChangedNotify() <-chan struct{}         { return l.changed }
func (l leaders) LinearizableReadNotify(context.Context) error { return l.read }

// TestLost: a write gets its answer, unless there is a new leader that does not have it.
func TestLost(t *testing.T) {
	const election, forever = 2 * time.Second, 7 * time.Second
	other := errors.New("another error")
	for what, c := range map[string]struct {
		change bool // of the leader
		read   error
		takes  time.Duration
		fails  error
		want   error
		within time.Duration
	}{
		"no other leader":                  {false, nil, 3 * time.Second, nil, nil, 3 * time.Second},
		"stored before the change":         {true, nil, time.Second, nil, nil, time.Second},
		"stored by the new leader":         {true, nil, election + lostAfter/2, nil, nil, election + lostAfter/2},
		"refused by the new leader":        {true, nil, election + lostAfter/2, other, other, election + lostAfter/2},
		"lost with its leader":             {true, nil, forever, nil, rpctypes.ErrGRPCTimeoutDueToLeaderFail, election + lostAfter},
		"the new leader does not lead yet": {true, other, forever, nil, nil, forever},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := leaders{make(chan struct{}), c.read}
				if c.change {
					time.AfterFunc(election, func() { close(l.changed) })
				}
				began := time.Now()
				answer, err := untilLost(t.Context(), l, lostAfter, func(ctx context.Context) (any, error) {
					select {
					case <-time.After(c.takes):
						return "stored", c.fails
					case <-ctx.Done():
						return nil, ctx.Err()
					}
				})
				if !errors.Is(err, c.want) || (err == nil) != (answer == "stored") && c.fails == nil {
					t.Errorf("%v, %v, want %v", answer, err, c.want)
				}
				if took := time.Since(began); took != c.within {
					t.Errorf("it took %s, want %s", took, c.within)
				}
				synctest.Wait()
			})
		})
	}
}
