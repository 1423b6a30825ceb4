// Package lifecycle runs the components of one process: it starts each when what it needs is ready,
// notices when one dies, and stops them in the reverse order.
//
// It knows nothing about Kubernetes and imports nothing of ours. components/node builds the
// components and hands them to a Group; restarting a component is not done here, because a component
// that dies takes the process down (a supervisor such as systemd starts it again).
package lifecycle

import (
	"context"
	"time"
)

// Component is a part of the process that lives as long as the process does.
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
// A failure of one component stops the whole Group.
type Component interface {
	// Name is stable: it is the component's log field, readiness key and trace stage.
	Name() string
	// Needs lists the names of the components that must be ready before this one starts.
	Needs() []string
	// Run blocks until ctx is cancelled (then it returns nil) or the component fails. It calls ready
	// once; further calls do nothing. Everything of ours that it started has ended when it returns; an
	// upstream component writes nothing more, and process exit finishes it. The exception: what pods would
	// miss during the rest of the stop may go on serving until the process ends, when it needs nothing that
	// stops before (components/dns leaves CoreDNS, which answers from memory); not when Run fails.
	//
	// ctx carries the values of the Group's context but not its cancellation: it is cancelled when
	// this component may stop.
	Run(ctx context.Context, ready func()) error
}

// State is where a component stands; the diagram is at Component.
type State string

// The states that an Event can report.
const (
	Starting State = "starting"
	Ready    State = "ready"
	Stopping State = "stopping"
	Stopped  State = "stopped"
	Failed   State = "failed"
)

// Event tells that a component has entered a state.
type Event struct {
	Component string
	State     State
	Time      time.Time
	Since     time.Duration // since this component's Run was called
	Err       error         // why, when State is Failed
}
