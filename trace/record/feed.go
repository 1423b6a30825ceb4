package record

import (
	"context"
	"time"

	"kubelith.io/kubelith/base/reconcile"
)

// The pauses of Feed: between two batches, and after a failure, when it doubles from the first to the last.
const (
	feedEvery  = time.Second
	firstRetry = time.Second
	lastRetry  = 30 * time.Second
)

// Feed calls send whenever the store has records after those that sent returns, at most once a second and less often
// while it fails, until ctx ends. It passes what send returned to result, which may be called with nil again and again.
func (s *Store) Feed(ctx context.Context, sent func() uint64, send func(context.Context) error, result func(error)) {
	retry := firstRetry
	for ctx.Err() == nil {
		if s.Wait(ctx, sent()) <= sent() { // ctx has ended
			return
		}
		err, pause := send(ctx), feedEvery
		if err != nil && ctx.Err() != nil {
			return
		}
		result(err)
		if err != nil {
			pause, retry = retry, min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		reconcile.Sleep(ctx, pause)
	}
}
