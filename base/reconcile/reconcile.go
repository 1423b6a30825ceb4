// Package reconcile is the loop of a component that compares the desired with the actual state: at once, after a
// change, and again after a while. It knows nothing about the states.
//
// client-go's workqueue is for many keys and several workers: ADR 034 says why one key has this.
package reconcile

import (
	"context"
	"sync"
	"time"
)

// Signal means that something may have changed. It holds one pending signal at most, so that Send never blocks and many
// changes cause one call.
type Signal chan struct{}

// NewSignal returns a Signal with nothing pending.
func NewSignal() Signal { return make(Signal, 1) }

// Send leaves a signal, unless one is pending.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Broadcast wakes all goroutines that wait for a change, as a Signal wakes one. The zero value is ready for use, and a
// Send costs nothing while none waits. A Broadcast must not be copied.
type Broadcast struct {
	mu   sync.Mutex
	next chan struct{} // nil: no goroutine waits
}

// Next returns a channel that is closed by the next Send. Take it before you read what may change, then wait: no
// change is missed.
func (b *Broadcast) Next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next == nil {
		b.next = make(chan struct{})
	}
	return b.next
}

// Send wakes all goroutines that wait.
func (b *Broadcast) Send() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.next != nil {
		close(b.next)
		b.next = nil
	}
}

// Loop calls look at once, and then settle after a signal, since others often follow it; steady signals do not delay it
// further. Without a signal it calls look again after the time that look returned; 0 waits for the next signal. Loop
// returns when ctx has ended; it does not interrupt look.
func Loop(ctx context.Context, changed <-chan struct{}, settle time.Duration, look func() (again time.Duration)) {
	next := time.NewTimer(0)
	defer next.Stop()
	for soon := true; ; {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			if !soon {
				soon = true
				next.Reset(settle)
			}
			continue
		case <-next.C:
		}
		if ctx.Err() != nil { // both may be true
			return
		}
		soon = false
		if again := look(); again > 0 {
			next.Reset(again)
		}
	}
}

// Sleep returns after d, or when ctx ends, and reports whether ctx has not ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
