package host

import (
	"context"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// KindOf starts a plugin whose kind is not known, queries it, and stops it. Nothing else may use the directories of o
// at the same time.
func KindOf(ctx context.Context, o Options, spec Spec) (kind plugins.Kind, err error) {
	h := New(o)
	if err := h.createDirs(); err != nil {
		return "", err
	}
	defer h.launcher.Close()
	spec.Kind = ""
	exe, err := process.Verify(&spec.Spec, o.DataDir)
	if err != nil {
		return "", err
	}
	p, err := h.launcher.Start(ctx, &spec.Spec, exe)
	if err != nil {
		return "", err
	}
	return process.KindOf(p.Description()), p.Stop()
}
