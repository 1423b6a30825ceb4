package lifecycle

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime/debug"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Policy determines what happens when a component fails, ends by itself, panics or hangs.
type Policy int

// The policies.
const (
	// EndProcess ends the Group, and with it the process.
	EndProcess Policy = iota
	// RestartAlone restarts the component in place. Only one run at a time is safe: one that does not end ends the
	// Group.
	RestartAlone
	// RestartBeside restarts the component in place. A run that does not end is abandoned, and the next one starts
	// beside it: what it writes late does no harm, since its context has ended and the next run writes the same.
	RestartBeside
)

// Restarter is implemented by a Component whose Run may be called again in the same process. The policy of any other
// component is EndProcess.
type Restarter interface {
	// RestartPolicy is constant.
	RestartPolicy() Policy
}

// PolicyOf returns the policy of a component. Wrappers of a component implement Restarter with it.
func PolicyOf(c Component) Policy {
	if r, ok := c.(Restarter); ok {
		return r.RestartPolicy()
	}
	return EndProcess
}

// Hold keeps a component that may be restarted from starting.
type Hold struct {
	Until time.Time
	Why   error
}

// Timing determines when components restart.
type Timing struct {
	// First is the pause before the first restart; it doubles each time, up to Longest. After a run that was ready for
	// ResetAfter it is First again.
	First, Longest, ResetAfter time.Duration
	// AskEvery is how often Health is called, and how long it may take. A component that is unhealthy for HangAfter, or
	// does not answer, hangs.
	AskEvery, HangAfter time.Duration
	// EndWithin is how long the end of a run may take before it is abandoned.
	EndWithin time.Duration
}

// orDefault returns a Timing without zero fields.
func (t Timing) orDefault() Timing {
	return Timing{
		First:      cmp.Or(t.First, time.Second),
		Longest:    cmp.Or(t.Longest, 2*time.Minute),
		ResetAfter: cmp.Or(t.ResetAfter, 5*time.Minute),
		AskEvery:   cmp.Or(t.AskEvery, 10*time.Second),
		HangAfter:  cmp.Or(t.HangAfter, time.Minute),
		EndWithin:  cmp.Or(t.EndWithin, 10*time.Second),
	}
}

func (t Timing) backoff() *wait.Backoff {
	return &wait.Backoff{Duration: t.First, Factor: 2, Cap: t.Longest, Steps: math.MaxInt}
}

// ErrRestarting is the cause (context.Cause) with which the context of a run ends when another run follows.
var ErrRestarting = errors.New("the component is restarting")

// Restarting reports whether the context of a component's run has ended because another run follows in this process.
func Restarting(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrRestarting) }

// restarts is the Group's state of a member's runs.
type restarts struct {
	run       int // the number of the one that counts
	abandoned int // earlier runs that have not returned
	readyAt   time.Time
	why       error     // it is ending
	due       time.Time // ending: when it is abandoned; backing off: when it starts
	pauses    *wait.Backoff

	asking bool      // for health, and no answer yet
	ill    time.Time // since when; zero: it is healthy
}

// begin is called when a run starts.
func (m *member) begin(t Timing) {
	m.run++
	m.readyAt, m.why, m.due, m.asking, m.ill = time.Time{}, nil, time.Time{}, false, time.Time{}
	if m.pauses == nil {
		m.pauses = t.backoff()
	}
}

// Fail tells the Group that a component has failed though its Run has not returned: for example, one of its goroutines
// panicked. It returns false, and does nothing, when the component is not one that is restarted. It is for whatever a
// component has started.
func (g *Group) Fail(component string, err error) bool {
	for _, m := range g.members {
		if m.Name() == component && m.policy != EndProcess {
			g.tell(report{m: m, what: broken, err: err})
			return true
		}
	}
	return false
}

// end asks a run to end because another one follows.
func (r *run) end(m *member, why error) {
	if r.stopping || m.state != Starting && m.state != Ready {
		return
	}
	m.why, m.due = why, time.Now().Add(r.timing.EndWithin)
	r.enter(m, Ending, why)
	m.cancel(ErrRestarting)
}

// backOff is called when a run has ended, or is abandoned, and another one follows.
func (r *run) backOff(m *member, why error) {
	m.cancel(nil) // of a run that has returned: ends whatever still uses it
	now := time.Now()
	if !m.readyAt.IsZero() && now.Sub(m.readyAt) >= r.timing.ResetAfter {
		m.pauses = r.timing.backoff()
	}
	pause := m.pauses.Step()
	m.due = now.Add(pause)
	r.log.WithField("component", m.Name()).WithError(why).Warnf("failed, restarting in %s", pause)
	m.state = BackingOff
	r.say(m, Event{State: BackingOff, Err: why, Next: pause})
}

// hold is called before anything starts.
func (r *run) hold() {
	for _, m := range r.members {
		if hold, ok := r.held[m.Name()]; ok && m.policy != EndProcess {
			m.started, m.due = time.Now(), hold.Until
			pause := time.Until(hold.Until).Round(time.Second)
			r.log.WithField("component", m.Name()).WithError(hold.Why).Errorf("held back, starting in %s", pause)
			m.state = BackingOff
			r.say(m, Event{State: BackingOff, Err: hold.Why, Next: pause})
		}
	}
}

// untilDue returns the time until a pause, or the time that an end may take, is over.
func (r *run) untilDue() time.Duration {
	const never = time.Hour
	next := never
	for _, m := range r.members {
		if m.state == Ending || m.state == BackingOff && all(m.first, (*member).mayBeUsed) {
			next = min(next, max(0, time.Until(m.due)))
		}
	}
	return next
}

// abandonLate abandons the runs that take too long to end.
func (r *run) abandonLate() {
	for _, m := range r.members {
		if m.state != Ending || r.stopping || time.Now().Before(m.due) {
			continue
		}
		late := fmt.Errorf("%w, and did not stop within %s", m.why, r.timing.EndWithin)
		if m.policy != RestartBeside {
			r.enter(m, Failed, late)
			r.failure = fmt.Errorf("%s: %w: a second run beside it is not safe, so the process exits", m.Name(), late)
			return
		}
		m.run++ // its reports no longer count
		m.abandoned++
		r.backOff(m, fmt.Errorf("%w: its goroutines are abandoned", late))
	}
}

// late handles a report of an abandoned run.
func (r *run) late(rep report) {
	if rep.what != ended {
		return
	}
	rep.m.abandoned--
	r.log.WithField("component", rep.m.Name()).Info("an abandoned run has returned")
	r.say(rep.m, Event{State: Returned})
}

// examine asks the components that may be restarted for their health.
func (r *run) examine() {
	if r.stopping {
		return
	}
	for _, m := range r.members {
		patient, ok := m.Component.(Health)
		if !ok || m.policy == EndProcess || m.state != Starting && m.state != Ready {
			continue
		}
		if m.asking {
			r.judge(m, errors.New("its health check does not return"))
			m.asking = true // the question is still open
			continue
		}
		m.asking = true
		go r.ask(m, patient, m.run)
	}
}

func (r *run) ask(m *member, patient Health, number int) {
	ctx, cancel := context.WithTimeout(r.base, r.timing.AskEvery)
	defer cancel()
	err := errors.New("its health check called runtime.Goexit")
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("health check: panic: %v", p)
			r.log.WithField("component", m.Name()).Errorf("panic: %v\n%s", p, debug.Stack())
		}
		r.tell(report{m: m, run: number, what: health, err: err})
	}()
	err = patient.Healthy(ctx)
}

// judge records the health of a component, and ends a run that was unhealthy for too long.
func (r *run) judge(m *member, err error) {
	m.asking = false
	switch {
	case err == nil:
		m.ill = time.Time{}
	case m.ill.IsZero():
		m.ill = time.Now()
	case time.Since(m.ill) >= r.timing.HangAfter:
		r.end(m, fmt.Errorf("hangs: %w", err))
	}
}
