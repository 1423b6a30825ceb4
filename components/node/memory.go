package node

import (
	"context"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

const (
	// gcPercent is how much the heap may grow over the live heap before it is collected. With Go's default of 100 a
	// process holds twice its live heap. A cluster's heap is mostly long-lived caches, so collecting more often costs
	// little. The environment variable GOGC takes precedence.
	gcPercent = 50
	// startGCPercent applies until everything is ready: during a start, gcPercent costs a third of the CPU and saves
	// less memory than a running cluster holds.
	startGCPercent = 400
	// settleAfter is when memory that only the start needed is released, counted from the start of the components.
	settleAfter = 30 * time.Second
)

// tuneMemory makes the process hold less memory once it has started. The caller calls started then; see
// docs/performance.md.
func tuneMemory() (started func()) {
	setGCPercent(startGCPercent)
	return sync.OnceFunc(func() { setGCPercent(gcPercent) })
}

// giveBack returns memory that only the start needed to the system, once.
func giveBack(ctx context.Context) {
	select {
	case <-time.After(settleAfter):
		debug.FreeOSMemory()
	case <-ctx.Done():
	}
}

func setGCPercent(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}
