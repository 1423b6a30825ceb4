// Package lifecycle runs the components of one process: it starts each when its needs are ready, notices when one fails
// or hangs, restarts it or ends all of them, and stops them in reverse order.
//
// It knows nothing about the components and imports none of our packages. components/node builds them and hands them to
// a Group. A component itself reports whether it may be restarted (Restarter). The others end the process when they
// fail: a supervisor such as systemd starts it again.
package lifecycle

import (
	"context"
	"time"
)

// Component is a part of the process that lives as long as the process does, in one run or, if it may be restarted
// (Restarter), in several.
//
//	            all Needs are ready         ready()
//	 (waiting) --------------------> starting -----> ready
//	     |                             |  |            |  |
//	     | Group stops                 |  +--- asked --+  |   asked: the Group stops and everything that
//	     v                             |       |          |   needs this component has returned
//	(never started)                    |    stopping      |
//	                                   |     |    |       |
//	           Run returned by itself, |     |    | Run returned an error or panicked
//	           with or without error,  |     |    v       |
//	           or panicked             +-----|-> failed <-+
//	                                         v
//	                                      stopped (Run returned nil)
//
// A failure stops the whole Group, unless the component may be restarted:
//
//	starting, ready --failed, ended, panicked--> backing off --pause is over--> starting
//	       |                                        ^
//	       +--hangs, or Group.Fail--> ending -------+   ending: cancelled; it has returned or was abandoned
//
// Components that need it go on meanwhile.
type Component interface {
	// Name is stable: it is the component's log field, readiness key and trace stage.
	Name() string
	// Needs lists the names of the components that must be ready before this one starts, unless it is Early, and that
	// stop after it.
	Needs() []string
	// Run blocks until ctx is cancelled (then it returns nil) or the component fails. It calls ready once; further
	// calls do nothing. Everything that it started itself has ended when it returns; an upstream component writes
	// nothing more, and process exit finishes it. The exception: what pods would miss during the rest of the stop may
	// go on serving until the process ends, when it needs nothing that stops before (components/worker/dns leaves
	// CoreDNS, which answers from memory); not when Run fails.
	//
	// ctx carries the values of the Group's context but not its cancellation: it is cancelled when this component may
	// stop.
	//
	// If the component may be restarted, Run is called again after it has returned, and leaves nothing behind that the
	// next call would meet: no goroutine, handler, socket or metric. Restarting reports whether ctx has ended for that
	// reason.
	Run(ctx context.Context, ready func()) error
}

// Provider is implemented by a Component that takes the place of another one, which does not run in this process: what
// needs that one needs this one instead.
type Provider interface {
	// Provides returns the name of the other component.
	Provides() string
}

// Early is implemented by a Component that has much to do before it uses all that it needs. It starts earlier than
// others, calls AwaitNeeds in Run, and stops in the same order as others.
type Early interface {
	// StartsAfter lists those of its Needs that must be ready before Run is called.
	StartsAfter() []string
}

// StartsAfter returns what must be ready before the component starts: all that it needs, unless it implements Early.
// Wrappers of a component implement Early with it, or the component starts as late as any other.
func StartsAfter(c Component) []string {
	if e, ok := c.(Early); ok {
		return e.StartsAfter()
	}
	return c.Needs()
}

// AwaitNeeds blocks until all that a component needs is ready, or ctx ends; then it returns ctx's error. ctx is that of
// the component's Run or derived from it. Once all was ready it never blocks again.
func AwaitNeeds(ctx context.Context) error {
	usable, _ := ctx.Value(usableKey{}).(chan struct{})
	if usable == nil {
		return nil // no Group has started the component
	}
	select {
	case <-usable:
		return nil
	default:
	}
	select {
	case <-usable:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// usableKey is the key of a channel in the context of a Run: closed when all that the component needs is ready.
type usableKey struct{}

// Health is implemented by a Component that can check whether it still makes progress.
type Health interface {
	// Healthy returns why the component makes no progress. It is called repeatedly between the start and the end of
	// Run, from another goroutine; an answer that takes longer than ctx counts as a bad one.
	Healthy(ctx context.Context) error
}

// HealthOf is for wrappers of a component: it returns the component's Healthy, or nil if the component does not
// implement Health.
func HealthOf(ctx context.Context, c Component) error {
	if h, ok := c.(Health); ok {
		return h.Healthy(ctx)
	}
	return nil
}

// State is the state of a component; the diagram is at Component.
type State string

// The states that an Event can report.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Failed   State = "failed"

	// Of a component that may be restarted:

	// Ending: it hangs, or Group.Fail was called. Its context is cancelled.
	Ending State = "ending"
	// BackingOff: it has ended and restarts after a pause.
	BackingOff State = "backing off"
	// Returned is no state but news: an abandoned run has ended after all.
	Returned State = "returned"
)

// Event reports that a component has entered a state.
type Event struct {
	Component string
	State     State
	Time      time.Time
	Since     time.Duration // since this component's Run was called
	Err       error         // why, when State is Failed, Ending or BackingOff
	Next      time.Duration // the pause, when State is BackingOff
	Abandoned int           // runs of the component that were asked to end and have not
}
