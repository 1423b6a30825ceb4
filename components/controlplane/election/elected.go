package election

import (
	"context"

	"kubelith.io/kubelith/base/lifecycle"
)

// Standby is implemented by a component that must know that it counted as ready without having run: another server led.
type Standby interface {
	Standby()
}

// Elect returns the component as one of which the cluster has one: it runs while this server leads. Its term ends with
// the Lease, not with the process; each term is a new call of Run. It is ready at once while another server leads.
func (e *Election) Elect(c lifecycle.Component) lifecycle.Component { return elected{c, e} }

type elected struct {
	lifecycle.Component
	election *Election
}

var (
	_ lifecycle.Component = elected{}
	_ lifecycle.Health    = elected{}
	_ lifecycle.Restarter = elected{}
)

// Needs implements lifecycle.Component.
func (c elected) Needs() []string { return append([]string{Name}, c.Component.Needs()...) }

// RestartPolicy implements lifecycle.Restarter.
func (c elected) RestartPolicy() lifecycle.Policy { return lifecycle.PolicyOf(c.Component) }

// Healthy implements lifecycle.Health. A component that does not run is healthy.
func (c elected) Healthy(ctx context.Context) error { return lifecycle.HealthOf(ctx, c.Component) }

// Run implements lifecycle.Component: one run of the component for each term.
func (c elected) Run(ctx context.Context, ready func()) error {
	standby := func() {
		if s, ok := c.Component.(Standby); ok {
			s.Standby()
		}
		ready()
	}
	for {
		term, err := c.election.await(ctx, standby)
		if err != nil {
			return nil // stopped
		}
		over, err := runTerm(ctx, term, c.Component, ready)
		if !over {
			return err
		}
		// A failure after the end of the term is only the end of the term, also while the server stops.
		c.election.opts.Log.WithField("component", c.Name()).WithError(err).Debug("the term is over")
		if ctx.Err() != nil {
			return nil
		}
	}
}

// runTerm runs the component until it ends, ctx ends or the term is over, which it reports.
func runTerm(ctx, term context.Context, c lifecycle.Component, ready func()) (over bool, err error) {
	run, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(term, func() { cancel(lifecycle.ErrRestarting) })()
	err = c.Run(run, ready)
	return lifecycle.Restarting(run) && term.Err() != nil, err
}
