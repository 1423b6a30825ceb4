package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

// Options configure a Group; every field may be left empty.
type Options struct {
	// Log receives changes of state (debug), panics with their stack, and failures after the first.
	Log logrus.FieldLogger
	// Observe is told every change of state, in order and from the goroutine that called Run. It must not block.
	Observe func(Event)
	// StopTimeout bounds the whole stop, from the first sign to the last component. Zero means no bound.
	StopTimeout time.Duration
}

// Group is a set of components that run together and fail together.
type Group struct {
	log         logrus.FieldLogger
	observe     func(Event)
	stopTimeout time.Duration
	members     []*member
	ran         atomic.Bool
}

// member is one component and what the Group knows of it. Only the goroutine of Group.Run touches the mutable part.
type member struct {
	Component
	needs   []*member // direct
	needers []*member // direct and indirect: all of them must have returned before this one is stopped

	state   State // empty: not started
	started time.Time
	cancel  context.CancelFunc
}

// running tells whether Run was called and has not returned.
func (m *member) running() bool {
	return m.state == Starting || m.state == Ready || m.state == Stopping
}

// report is what a component's goroutine tells the Group: that it is ready, or that Run has returned.
type report struct {
	m     *member
	ready bool
	err   error // of Run, unless ready
}

// NewGroup checks the components and their dependencies. It refuses two of the same name, a need that no
// component has as its name, and a cycle of needs.
func NewGroup(opts Options, components ...Component) (*Group, error) {
	g := &Group{log: opts.Log, observe: opts.Observe, stopTimeout: opts.StopTimeout}
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

// Run starts the components and blocks until all of them have returned. It returns nil after ctx was
// cancelled and everything stopped in order, else the first failure, with the name of its component.
// A Group runs once.
//
// When StopTimeout is over Run returns the failure, or an error with the names of the components that did not stop;
// their contexts, and those of everything that they needed, are cancelled then.
func (g *Group) Run(ctx context.Context) error {
	if g.ran.Swap(true) {
		return errors.New("lifecycle: the group has already run")
	}
	r := &run{
		Group: g,
		// Room for all that can ever be said (one ready and one end each), so that nobody blocks on a
		// Group that has given up waiting.
		reports: make(chan report, 2*len(g.members)),
		base:    context.WithoutCancel(ctx),
	}
	defer r.cancelAll()
	return r.loop(ctx)
}

// run is the state of one Group.Run.
type run struct {
	*Group
	reports  chan report
	base     context.Context // ctx's values without its cancellation
	stopping bool
	failure  error // the first one
}

func (r *run) loop(ctx context.Context) error {
	done := ctx.Done()
	var timeout <-chan time.Time
	for {
		if ctx.Err() != nil || r.failure != nil {
			r.stopping = true
		}
		if !r.stopping {
			r.startReady()
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
			if r.failure != nil { // it is why the rest does not stop, and what the user should hear
				r.log.Warn(r.stuck())
				return r.failure
			}
			return r.stuck()
		case rep := <-r.reports:
			r.handle(rep)
		}
	}
}

// startReady starts every component whose needs are all ready.
func (r *run) startReady() {
	for _, m := range r.members {
		if m.state != "" || !all(m.needs, func(n *member) bool { return n.state == Ready }) {
			continue
		}
		ctx, cancel := context.WithCancel(r.base)
		m.cancel, m.started = cancel, time.Now()
		r.enter(m, Starting, nil)
		go r.runOne(ctx, m)
	}
}

// stopUnneeded cancels every running component that no running component needs.
func (r *run) stopUnneeded() {
	for _, m := range r.members {
		asked := m.state == Stopping
		if !m.running() || asked || !all(m.needers, func(n *member) bool { return !n.running() }) {
			continue
		}
		r.enter(m, Stopping, nil)
		m.cancel()
	}
}

// runOne is the goroutine of one component.
func (r *run) runOne(ctx context.Context, m *member) {
	var once sync.Once
	ready := func() { once.Do(func() { r.reports <- report{m: m, ready: true} }) }
	// Stays when Run neither returns nor panics: runtime.Goexit.
	err := errors.New("its goroutine was ended from within")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
			r.log.WithField("component", m.Name()).Errorf("panic: %v\n%s", p, debug.Stack())
		}
		r.reports <- report{m: m, err: err}
	}()
	err = m.Run(ctx, ready)
}

func (r *run) handle(rep report) {
	m := rep.m
	asked := m.state == Stopping
	switch {
	case rep.ready:
		if m.state == Starting { // else it became ready too late to matter
			r.enter(m, Ready, nil)
		}
	case asked && (rep.err == nil || errors.Is(rep.err, context.Canceled)):
		r.enter(m, Stopped, nil)
	case rep.err == nil:
		r.fail(m, errors.New("ended by itself"))
	default:
		r.fail(m, rep.err)
	}
}

// fail keeps the first failure for the caller of Run, and logs the later ones, which nobody would see otherwise.
func (r *run) fail(m *member, err error) {
	r.enter(m, Failed, err)
	if r.failure == nil {
		r.failure = fmt.Errorf("%s: %w", m.Name(), err)
		return
	}
	r.log.WithField("component", m.Name()).WithError(err).Warn("failed as well")
}

func (r *run) enter(m *member, s State, err error) {
	m.state = s
	now := time.Now()
	since := now.Sub(m.started)
	r.log.WithFields(logrus.Fields{"component": m.Name(), "since": since.Round(time.Millisecond)}).Debug(s)
	r.observe(Event{Component: m.Name(), State: s, Time: now, Since: since, Err: err})
}

func (r *run) anyRunning() bool {
	return !all(r.members, func(m *member) bool { return !m.running() })
}

// stuck names the components that were asked to stop and did not, and those that could not be asked because of them.
func (r *run) stuck() error {
	var asked, waiting []string
	for _, m := range r.members {
		switch {
		case m.state == Stopping:
			asked = append(asked, m.Name())
		case m.running():
			waiting = append(waiting, m.Name())
		}
	}
	msg := strings.Join(asked, ", ")
	if len(waiting) > 0 {
		msg += " (waiting for them: " + strings.Join(waiting, ", ") + ")"
	}
	return fmt.Errorf("did not stop within %s: %s: the process ends all the same; report it with the log if it happens again", r.stopTimeout, msg)
}

func (r *run) cancelAll() {
	for _, m := range r.members {
		if m.cancel != nil {
			m.cancel()
		}
	}
}

func all(ms []*member, ok func(*member) bool) bool {
	for _, m := range ms {
		if !ok(m) {
			return false
		}
	}
	return true
}
