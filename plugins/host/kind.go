package host

import (
	"context"
	"errors"

	"kubelith.io/kubelith/plugins"
)

// anyKind is of a Spec whose kind is to be found out.
const anyKind plugins.Kind = ""

// KindOf starts a plugin to learn what it is, and ends it: for those who have nothing but an executable. Nothing else may use the
// directories of o meanwhile.
func KindOf(ctx context.Context, o Options, spec Spec) (kind plugins.Kind, err error) {
	h := New(o)
	if err := h.makeDirs(); err != nil {
		return "", err
	}
	defer h.close()
	spec.Kind = anyKind
	exe, err := verify(&spec, o.DataDir)
	if err != nil {
		return "", err
	}
	i, err := h.start(ctx, &spec, exe)
	if err != nil {
		return "", err
	}
	return kindOf(i.description), errors.Join(err, i.end())
}
