package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/components/controlplane/election"
)

// builder collects components and the errors of their constructors, so that a user sees all wrong arguments at once.
type builder struct {
	parts []part
	errs  []error
	// election runs the components of which a cluster has one; nil on an agent.
	election *election.Election
}

// part is a component and the one with which it is switched off; empty: none.
type part struct {
	lifecycle.Component
	with string
}

// add adds a component as its constructor returns it, with or without an error.
func (b *builder) add(c lifecycle.Component, err ...error) { b.with("").add(c, err...) }

// elect adds a component of which the cluster has one.
func (b *builder) elect(c lifecycle.Component, err ...error) { b.with("").elect(c, err...) }

// with is followed by add or elect, for a component that is switched off with the one of that name.
func (b *builder) with(name string) adder { return adder{b, name} }

type adder struct {
	*builder
	with string
}

func (a adder) add(c lifecycle.Component, err ...error) {
	if a.check(err...) {
		a.parts = append(a.parts, part{c, a.with})
	}
}

func (a adder) elect(c lifecycle.Component, err ...error) {
	if a.check(err...) {
		a.parts = append(a.parts, part{a.election.Elect(c), a.with})
	}
}

// check collects the errors, and reports whether there were none.
func (b *builder) check(err ...error) bool {
	wrong := errors.Join(err...)
	if wrong != nil {
		b.errs = append(b.errs, wrong)
	}
	return wrong == nil
}

// enabled returns the components without the disabled ones and those that go with them, and without needs for either.
func (b *builder) enabled(disabled []string) ([]lifecycle.Component, error) {
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	with, provided := map[string]string{}, map[string]string{}
	for _, p := range b.parts {
		with[p.Name()] = p.with
		if by, ok := p.Component.(lifecycle.Provider); ok {
			provided[by.Provides()] = p.Name()
		}
	}
	for name, other := range with {
		if _, known := with[other]; other != "" && !known {
			return nil, fmt.Errorf("%s is switched off with %s, which is no component: a bug in Kubelith", name, other)
		}
	}
	off := func(name string) bool {
		for name != "" && !slices.Contains(disabled, name) {
			name = with[name]
		}
		return name != ""
	}
	var out []lifecycle.Component
	for _, p := range b.parts {
		if !off(p.Name()) {
			out = append(out, wired{p.Component, off, provided})
		}
	}
	return out, nil
}

// wired is a component as it runs in this process: it does not need disabled components, and what upstream logs for it
// carries its name.
type wired struct {
	lifecycle.Component
	off      func(name string) bool
	provided map[string]string // by which component, where another one takes the place of one: see lifecycle.Provider
}

// Needs implements lifecycle.Component.
func (w wired) Needs() []string { return w.present(w.Component.Needs()) }

// StartsAfter implements lifecycle.Early.
func (w wired) StartsAfter() []string { return w.present(lifecycle.StartsAfter(w.Component)) }

// present returns the names of components as they are in this process, without the disabled ones.
func (w wired) present(names []string) []string {
	var needs []string
	for _, n := range names {
		if n = cmp.Or(w.provided[n], n); !w.off(n) {
			needs = append(needs, n)
		}
	}
	return needs
}

// RestartPolicy implements lifecycle.Restarter.
func (w wired) RestartPolicy() lifecycle.Policy { return lifecycle.PolicyOf(w.Component) }

// Healthy implements lifecycle.Health, for components that do.
func (w wired) Healthy(ctx context.Context) error { return lifecycle.HealthOf(ctx, w.Component) }

// Run implements lifecycle.Component.
func (w wired) Run(ctx context.Context, ready func()) error {
	return w.Component.Run(logging.WithComponent(ctx, w.Name()), ready)
}
