package node

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// gcPercent is how much the heap may grow over what is live before it is
	// collected. Go's default of 100 makes a process hold twice its live heap; a
	// cluster's is mostly caches, which live long, so that collecting more often
	// costs little. The environment variable GOGC goes first.
	gcPercent = 50
	// startGCPercent holds until everything is ready: collecting at gcPercent takes a third of the CPU of a start, for
	// garbage that is less than what a running cluster holds.
	startGCPercent = 400
	// settleAfter is when what only the start needed is given back to the system.
	settleAfter = 30 * time.Second
)

// tuneMemory makes the process hold less memory once it has started, which the caller says with started; see
// docs/performance.md.
func tuneMemory(ctx context.Context) (started func()) {
	setGCPercent(startGCPercent)
	go func() {
		select {
		case <-time.After(settleAfter):
			debug.FreeOSMemory()
		case <-ctx.Done():
		}
	}()
	return sync.OnceFunc(func() { setGCPercent(gcPercent) })
}

func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
