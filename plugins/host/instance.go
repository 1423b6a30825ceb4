package host

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"kubelith.io/kubelith/plugins/process"
)

// maxCalls are in flight in one process; further calls wait.
const maxCalls = 64

// instance is a process that serves calls, or finishes its last ones.
type instance struct {
	*process.Process
	exe atomic.Pointer[process.FileID] // the file that has this executable's content now

	unhealthy atomic.Bool // missed a health check: calls fail at once
	slots     chan struct{}

	mu    sync.Mutex
	calls int
	idle  chan struct{} // not nil: no call begins any more; closed with the last one
}

func newInstance(p *process.Process, exe process.FileID) *instance {
	i := &instance{Process: p, slots: make(chan struct{}, maxCalls)}
	i.exe.Store(&exe)
	return i
}

// begin counts a call, and reports whether it may go on: not after drain.
func (i *instance) begin() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.idle != nil {
		return false
	}
	i.calls++
	return true
}

// finish ends a call that begin counted.
func (i *instance) finish() {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.calls--
	if i.idle != nil && i.calls == 0 {
		close(i.idle)
	}
}

func (i *instance) inFlight() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.calls
}

// drain lets no further call begin. It returns when the calls in flight have ended, after timeout, or with ctx.
func (i *instance) drain(ctx context.Context, timeout time.Duration) {
	i.mu.Lock()
	if i.idle == nil {
		i.idle = make(chan struct{})
		if i.calls == 0 {
			close(i.idle)
		}
	}
	i.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-i.idle:
	case <-i.Done():
	case <-timer.C:
	case <-ctx.Done():
	}
}

// stop ends the process and removes what belongs to it.
func (i *instance) stop() error {
	if i.unhealthy.Load() {
		i.Kill() // it would not answer
	}
	return i.Stop()
}
