package node

import (
	"errors"
	"slices"

	"kubelith.io/kubelith/components/lifecycle"
)

// builder collects components and the errors of their constructors, so that a
// user sees everything that is wrong with the arguments at once.
type builder struct {
	components []lifecycle.Component
	errs       []error
}

func (b *builder) add(c lifecycle.Component, err error) {
	if err != nil {
		b.errs = append(b.errs, err)
		return
	}
	b.components = append(b.components, c)
}

// enabled returns the components without the disabled ones, and without needs
// for them.
func (b *builder) enabled(disabled []string) ([]lifecycle.Component, error) {
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	var out []lifecycle.Component
	for _, c := range b.components {
		if !slices.Contains(disabled, c.Name()) {
			out = append(out, without{c, disabled})
		}
	}
	return out, nil
}

// without is a component that does not need what is disabled.
type without struct {
	lifecycle.Component
	disabled []string
}

// Needs implements lifecycle.Component.
func (w without) Needs() []string {
	return slices.DeleteFunc(slices.Clone(w.Component.Needs()), func(n string) bool {
		return slices.Contains(w.disabled, n)
	})
}
