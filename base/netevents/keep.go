package netevents

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/reconcile"
)

const (
	// settle is how long a removed table is left to the program that has removed it, which may remove more.
	settle = 200 * time.Millisecond
	// restoreAgain is the time between attempts after a failure.
	restoreAgain = 10 * time.Second
)

// Keep calls restore at once, after each removal of the nftables table, and again after a failure, until ctx ends. what
// is what restore restores, for the log.
func Keep(ctx context.Context, table, what string, log logrus.FieldLogger, restore func(context.Context) error) {
	removed := reconcile.NewSignal()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() {
		if err := TableRemovals(ctx, table, removed.Send); err != nil {
			log.WithError(err).Warnf("cannot watch nftables: %s that another program removes will be missing until a restart", what)
		}
	})
	reconcile.Loop(ctx, removed, settle, func() time.Duration {
		if err := restore(ctx); err != nil && ctx.Err() == nil {
			log.WithError(err).Errorf("cannot restore %s, retrying in %s", what, restoreAgain)
			return restoreAgain
		}
		return 0
	})
}
