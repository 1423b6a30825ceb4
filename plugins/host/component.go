package host

import (
	"context"
	"slices"
	"sync"
	"time"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
)

// readyWithin is how long the node waits for plugins at its start. Callers of a slower plugin meet its failure policy.
const readyWithin = 5 * time.Second

var _ lifecycle.Component = (*Host)(nil)

// Name implements lifecycle.Component.
func (h *Host) Name() string { return "plugins" }

// Needs implements lifecycle.Component. Plugins depend on no other component.
func (h *Host) Needs() []string { return nil }

// Run implements lifecycle.Component. It is ready when each admission and scheduling plugin is ready or has failed
// once, and after readyWithin at the latest.
func (h *Host) Run(ctx context.Context, ready func()) error {
	if n, err := process.Sweep(h.opts.RunDir); err != nil {
		h.log.WithError(err).Warn("cannot remove everything that plugins of an earlier run left")
	} else if n > 0 {
		h.log.Infof("ended %d processes that plugins of an earlier run left", n)
	}
	if err := h.createDirs(); err != nil {
		return err
	}
	var supervisors, others sync.WaitGroup
	h.mu.Lock()
	h.run = h.supervisor(ctx, &supervisors)
	for _, p := range h.wanted {
		h.run(p)
	}
	// Calls of storage plugins are retried until they succeed, so nothing has to wait for them here.
	first := slices.DeleteFunc(slices.Clone(h.wanted), func(p *plugin) bool { return p.kind == plugins.Storage })
	h.mu.Unlock()

	others.Go(func() {
		awaitSettled(ctx, first)
		ready()
	})
	others.Go(func() { h.watch(ctx) })
	<-ctx.Done()
	others.Wait() // after the watch only Apply adds plugins
	h.mu.Lock()
	h.run = nil
	h.mu.Unlock()
	supervisors.Wait()
	h.calls.End()
	h.launcher.Close()
	return nil
}

func awaitSettled(ctx context.Context, all []*plugin) {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	for _, p := range all {
		select {
		case <-p.settled:
		case <-ctx.Done():
			return
		}
	}
}
