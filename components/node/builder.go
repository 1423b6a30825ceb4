package node

import (
	"context"
	"errors"
	"slices"

	"kubelith.io/kubelith/components/election"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/logging"
)

// builder collects components and the errors of their constructors, so that a
// user sees everything that is wrong with the arguments at once.
type builder struct {
	components []lifecycle.Component
	errs       []error
	// election decides whether this server does what a cluster has once; nil on an agent.
	election *election.Election
	// api is the component that leads to the API, where that is not the apiserver itself: who needs the apiserver
	// needs it instead.
	api string
}

func (b *builder) add(c lifecycle.Component, err error) {
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	b.components = append(b.components, c)
}

// elect adds a component of which the cluster has one.
func (b *builder) elect(c lifecycle.Component, err error) {
	if err == nil {
		c = b.election.Elect(c)
	}
	b.add(c, err)
}

// enabled returns the components without the disabled ones, and without needs
// for them.
func (b *builder) enabled(disabled []string) ([]lifecycle.Component, error) {
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	if slices.Contains(disabled, "containerd") {
		// Without a container runtime there is nobody to import images for.
		disabled = append(slices.Clone(disabled), "images", "network")
	}
	if slices.Contains(disabled, "dns") {
		disabled = append(slices.Clone(disabled), "dns-publisher") // one setting for both
	}
	if slices.Contains(disabled, "kubelet") {
		disabled = append(slices.Clone(disabled), "host-ports") // there is no Node to tell of
	}
	if slices.Contains(disabled, "network") {
		disabled = append(slices.Clone(disabled), "cni") // one setting for both
	}
	var out []lifecycle.Component
	for _, c := range b.components {
		if !slices.Contains(disabled, c.Name()) {
			out = append(out, wired{c, disabled, b.api})
		}
	}
	return out, nil
}

// wired is a component as it runs in this process: it does not need what is
// disabled, and what upstream logs on its behalf carries its name.
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
func (w wired) Healthy(ctx context.Context) error {
	if h, ok := w.Component.(lifecycle.Health); ok {
		return h.Healthy(ctx)
	}
	return nil
}

// Run implements lifecycle.Component.
func (w wired) Run(ctx context.Context, ready func()) error {
	return w.Component.Run(logging.WithComponent(ctx, w.Name()), ready)
}
