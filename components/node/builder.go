package node

import (
	"context"
	"errors"
	"slices"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/components/controlplane/election"
)

// builder collects components and the errors of their constructors, so that a user sees all wrong arguments at once.
type builder struct {
	components []lifecycle.Component
	errs       []error
	// election runs the components of which a cluster has one; nil on an agent.
	election *election.Election
	// api is the component that connects to the API where that is not the apiserver itself: components that need the
	// apiserver need it instead.
	api string
}

// add adds a component as its constructor returns it, with or without an error.
func (b *builder) add(c lifecycle.Component, err ...error) {
	if b.check(err...) {
		b.components = append(b.components, c)
	}
}

// elect adds a component of which the cluster has one.
func (b *builder) elect(c lifecycle.Component, err ...error) {
	if b.check(err...) {
		b.components = append(b.components, b.election.Elect(c))
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

// enabled returns the components without the disabled ones, and without needs
// for them.
func (b *builder) enabled(disabled []string) ([]lifecycle.Component, error) {
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	for _, with := range []struct {
		name   string
		others []string // switched off with it; one that has a row itself has it further down
	}{
		{"containerd", []string{"images", "network"}}, // images need a container runtime
		{"dns", []string{"dns-publisher"}},            // one setting for both
		{"kubelet", []string{"host-ports"}},           // there is no Node to report
		{"network", []string{"cni"}},                  // one setting for both
	} {
		if slices.Contains(disabled, with.name) {
			disabled = append(slices.Clone(disabled), with.others...)
		}
	}
	var out []lifecycle.Component
	for _, c := range b.components {
		if !slices.Contains(disabled, c.Name()) {
			out = append(out, wired{c, disabled, b.api})
		}
	}
	return out, nil
}

// wired is a component as it runs in this process: it does not need disabled components, and what upstream logs for it
// carries its name.
type wired struct {
	lifecycle.Component
	disabled []string
	api      string // instead of the apiserver, unless empty
}

// Needs implements lifecycle.Component.
func (w wired) Needs() []string {
	var needs []string
	for _, n := range w.Component.Needs() {
		if n == "apiserver" && w.api != "" {
			n = w.api
		}
		if !slices.Contains(w.disabled, n) {
			needs = append(needs, n)
		}
	}
	return needs
}

// Healthy implements lifecycle.Health, for components that do.
func (w wired) Healthy(ctx context.Context) error { return lifecycle.HealthOf(ctx, w.Component) }

// Run implements lifecycle.Component.
func (w wired) Run(ctx context.Context, ready func()) error {
	return w.Component.Run(logging.WithComponent(ctx, w.Name()), ready)
}
