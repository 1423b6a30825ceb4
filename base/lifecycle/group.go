package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// Options configure a Group; every field may be empty.
type Options struct {
	// Log receives state changes (debug), restarts, panics with their stack, and failures after the first.
	Log logrus.FieldLogger
	// Observe receives every state change, in order and from the goroutine that called Run. It must not block.
	Observe func(Event)
	// StopTimeout bounds the whole stop, from the first sign to the last component. Zero means no bound.
	StopTimeout time.Duration
	// Held are components that do not start at once; components that need them do not wait for them. It has no effect
	// on a component whose policy is EndProcess.
	Held map[string]Hold
	// Timing determines when components restart; zero fields have defaults.
	Timing Timing
}

// Group is a set of components that run together.
type Group struct {
	log         logrus.FieldLogger
	observe     func(Event)
	stopTimeout time.Duration
	timing      Timing
	held        map[string]Hold
	members     []*member
	ran         atomic.Bool
	reports     chan report
	over        chan struct{} // closed when Run returns: reports are no longer received
}

// Label is the pprof label of every goroutine that a component has started: the component's name.
const Label = "component"

// member is one component and the Group's state of it. Only the goroutine of Group.Run touches the mutable part.
type member struct {
	Component
	policy  Policy
	needs   []*member // direct
	first   []*member // those of needs that must be ready before it starts
	needers []*member // direct and indirect: all of them must have returned before this one is stopped

	state   State // empty: not started
	started time.Time
	usable  chan struct{} // closed when all needs are ready; nil: it has not started, or they were
	cancel  context.CancelCauseFunc
	restarts
}

// running reports whether Run was called and has not returned.
func (m *member) running() bool {
	return m.state == Starting || m.state == Ready || m.state == Stopping || m.state == Ending
}

// report is news of a component for the Group: that it is ready, how it is, or that Run has returned.
type report struct {
	m    *member
	run  int // the number of the run that reports
	what what
	err  error
}

// what is the subject of a report.
type what int

const (
	ended  what = iota // Run has returned, with err
	ready              // ready was called
	health             // Healthy has returned err
	broken             // another goroutine has seen it fail, with err; of any run
)

// NewGroup checks the components and their dependencies. It refuses duplicate names, a need that no component has as
// its name, and a cycle of needs.
func NewGroup(opts Options, components ...Component) (*Group, error) {
	g := &Group{log: opts.Log, observe: opts.Observe, stopTimeout: opts.StopTimeout, timing: opts.Timing.orDefault(),
		held: opts.Held, reports: make(chan report), over: make(chan struct{})}
	if g.log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		g.log = silent
	}
	if g.observe == nil {
		g.observe = func(Event) {}
	}
	var err error
	g.members, err = link(components)
	return g, err
}

// Run starts the components and blocks until all of them have returned. It returns nil after ctx was cancelled and
// everything stopped in order, else the first failure, with the name of its component. A Group runs once.
//
// When StopTimeout is over, Run returns the failure, or an error with the names of the components that did not stop,
// and cancels their contexts and those of everything that they need. It does not wait for an abandoned run.
func (g *Group) Run(ctx context.Context) error {
	if g.ran.Swap(true) {
		return errors.New("lifecycle: the group has already run")
	}
	defer close(g.over)
	base, cancelAll := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelAll()
	r := &run{Group: g, base: base}
	return r.loop(ctx)
}

// run is the state of one Group.Run.
type run struct {
	*Group
	base     context.Context // ctx's values without its cancellation; it ends when Run returns
	stopping bool
	failure  error // the first one
}

func (r *run) loop(ctx context.Context) error {
	done := ctx.Done()
	var timeout <-chan time.Time
	ask := time.NewTicker(r.timing.AskEvery)
	defer ask.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	r.hold()
	for {
		if ctx.Err() != nil || r.failure != nil {
			r.stopping = true
		}
		if !r.stopping {
			r.startReady()
			wake.Reset(r.untilDue())
		} else {
			done = nil
			if timeout == nil && r.stopTimeout > 0 {
				timer := time.NewTimer(r.stopTimeout)
				defer timer.Stop()
				timeout = timer.C
			}
			r.stopUnneeded()
			if !r.anyRunning() {
				return r.failure
			}
		}
		select {
		case <-done:
		case <-timeout:
			if r.failure != nil { // it is why the rest does not stop, and what the user should see
				r.log.Warn(r.stuck())
				return r.failure
			}
			return r.stuck()
		case rep := <-r.reports:
			r.handle(rep)
		case <-ask.C:
			r.examine()
		case <-wake.C:
			r.abandonLate()
		}
	}
}

// startReady starts every component that may start, and whose pause, if any, is over. It tells those that have started
// early when all that they need is ready.
func (r *run) startReady() {
	for _, m := range r.members {
		rests := m.state != "" && (m.state != BackingOff || time.Now().Before(m.due))
		if !rests && all(m.first, (*member).mayBeUsed) {
			m.usable = make(chan struct{})
			ctx, cancel := context.WithCancelCause(context.WithValue(r.base, usableKey{}, m.usable))
			m.cancel, m.started = cancel, time.Now()
			m.begin(r.timing)
			r.enter(m, Starting, nil)
			go r.runOne(ctx, m, m.run)
		}
		if m.usable != nil && all(m.needs, (*member).mayBeUsed) {
			close(m.usable)
			m.usable = nil
		}
	}
}

// mayBeUsed reports whether the components that need it may start.
func (m *member) mayBeUsed() bool { return m.state == Ready || m.run == 0 && m.state == BackingOff }

// stopUnneeded cancels every running component that no running component needs.
func (r *run) stopUnneeded() {
	for _, m := range r.members {
		asked := m.state == Stopping || m.state == Ending
		if !m.running() || asked || !all(m.needers, func(n *member) bool { return !n.running() }) {
			continue
		}
		r.enter(m, Stopping, nil)
		m.cancel(nil)
	}
}

// tell sends a report to the Group, unless it has given up waiting.
func (g *Group) tell(rep report) {
	select {
	case g.reports <- rep:
	case <-g.over:
	}
}

// runOne is the goroutine of one run of a component.
func (r *run) runOne(ctx context.Context, m *member, number int) {
	var once sync.Once
	isReady := func() { once.Do(func() { r.tell(report{m: m, run: number, what: ready}) }) }
	// Remains set when Run neither returns nor panics: runtime.Goexit.
	err := errors.New("its goroutine called runtime.Goexit")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			r.log.WithField("component", m.Name()).Errorf("panic: %v\n%s", p, debug.Stack())
		}
		r.tell(report{m: m, run: number, what: ended, err: err})
	}()
	pprof.Do(ctx, pprof.Labels(Label, m.Name()), func(ctx context.Context) { err = m.Run(ctx, isReady) })
}

func (r *run) handle(rep report) {
	m := rep.m
	switch {
	case rep.what == broken:
		r.end(m, rep.err)
	case rep.run != m.run:
		r.late(rep)
	case rep.what == health:
		r.judge(m, rep.err)
	case rep.what == ready:
		if m.state == Starting { // else it became ready too late to matter
			m.readyAt = time.Now()
			r.enter(m, Ready, nil)
		}
	case !m.running(): // the Group has given up waiting for it to end
	case m.state == Ending && !r.stopping:
		r.backOff(m, m.why)
	case m.state == Ending, m.state == Stopping && (rep.err == nil || errors.Is(rep.err, context.Canceled)):
		r.enter(m, Stopped, nil)
	case rep.err == nil:
		r.fail(m, errors.New("stopped unexpectedly"))
	default:
		r.fail(m, rep.err)
	}
}

// fail keeps the first failure for the caller of Run, and logs the later ones, which would otherwise be lost. A
// component that is restarted does not fail the Group, unless the Group is stopping.
func (r *run) fail(m *member, err error) {
	if m.policy != EndProcess && !r.stopping {
		r.backOff(m, err)
		return
	}
	r.enter(m, Failed, err)
	if r.failure == nil {
		r.failure = fmt.Errorf("%s: %w", m.Name(), err)
		return
	}
	r.log.WithField("component", m.Name()).WithError(err).Warn("also failed")
}

func (r *run) enter(m *member, s State, err error) {
	m.state = s
	r.say(m, Event{State: s, Err: err})
}

// say completes an event and passes it to Observe.
func (r *run) say(m *member, e Event) {
	e.Component, e.Time, e.Abandoned = m.Name(), time.Now(), m.abandoned
	e.Since = e.Time.Sub(m.started)
	r.log.WithFields(logrus.Fields{"component": e.Component, "since": e.Since.Round(time.Millisecond)}).Debug(e.State)
	r.observe(e)
}

func (r *run) anyRunning() bool {
	return !all(r.members, func(m *member) bool { return !m.running() })
}

// stuck names the components that were asked to stop and did not, and those that could not be asked because of them.
func (r *run) stuck() error {
	var asked, waiting []string
	for _, m := range r.members {
		switch {
		case m.state == Stopping || m.state == Ending:
			asked = append(asked, m.Name())
		case m.running():
			waiting = append(waiting, m.Name())
		}
	}
	msg := strings.Join(asked, ", ")
	if len(waiting) > 0 {
		msg += " (waiting for them: " + strings.Join(waiting, ", ") + ")"
	}
	return fmt.Errorf("did not stop within %s: %s: the process exits anyway; report it with the log if it happens again", r.stopTimeout, msg)
}

func all(ms []*member, ok func(*member) bool) bool {
	for _, m := range ms {
		if !ok(m) {
			return false
		}
	}
	return true
}
