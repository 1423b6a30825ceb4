package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Watchdog tells a working component from a hanging one: work that must end is bracketed by Begin and its return. The
// zero value is usable; one Watchdog serves all runs of a component.
type Watchdog struct {
	// Limit is how long a piece of work may take; zero means WorkLimit.
	Limit time.Duration

	mu    sync.Mutex
	begun map[*work]struct{}
}

var _ Health = (*Watchdog)(nil)

// WorkLimit is longer than the longest request to the API, a minute.
const WorkLimit = 2 * time.Minute

// work is a piece of work that has begun.
type work struct {
	what string
	at   time.Time
}

// Begin notes that work has begun. Call done once, when the work has ended, in whatever way, or when it belongs to a
// run that has ended.
func (w *Watchdog) Begin(what string) (done func()) {
	job := &work{what, time.Now()}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.begun == nil {
		w.begun = map[*work]struct{}{}
	}
	w.begun[job] = struct{}{}
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.begun, job)
	}
}

// Reset forgets the work of an earlier run; call it when a run begins.
func (w *Watchdog) Reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	clear(w.begun)
}

// Healthy implements Health: it names a piece of work that takes too long.
func (w *Watchdog) Healthy(context.Context) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	limit := w.Limit
	if limit == 0 {
		limit = WorkLimit
	}
	for job := range w.begun {
		if took := time.Since(job.at); took > limit {
			return fmt.Errorf("%s has taken %s so far", job.what, took.Round(time.Second))
		}
	}
	return nil
}
