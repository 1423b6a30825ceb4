package host

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/plugins"
)

// readyWithin is how long the node waits for plugins at its start: what depends on one that is slower meets its failure policy.
const readyWithin = 5 * time.Second

var _ lifecycle.Component = (*Host)(nil)

// Name implements lifecycle.Component.
func (h *Host) Name() string { return "plugins" }

// Needs implements lifecycle.Component: plugins know nothing of the node.
func (h *Host) Needs() []string { return nil }

// Run implements lifecycle.Component: it is ready when each plugin that requests or pods wait for is, or has failed once, or readyWithin is
// over.
func (h *Host) Run(ctx context.Context, ready func()) error {
	if n, err := Sweep(h.opts.RunDir); err != nil {
		h.log.WithError(err).Warn("what plugins of an earlier run have left is not all removed")
	} else if n > 0 {
		h.log.Infof("ended %d processes that plugins of an earlier run have left", n)
	}
	if err := h.makeDirs(); err != nil {
		return err
	}
	var supervisors, others sync.WaitGroup
	h.mu.Lock()
	h.run = h.attend(ctx, &supervisors)
	for _, p := range h.wanted {
		h.run(p)
	}
	// Nothing starts sooner or later for a storage plugin: what it is told to do waits.
	first := slices.DeleteFunc(slices.Clone(h.wanted), func(p *plugin) bool { return p.kind == plugins.Storage })
	h.mu.Unlock()

	others.Go(func() {
		awaitSettled(ctx, first)
		ready()
	})
	others.Go(func() { h.watch(ctx) })
	<-ctx.Done()
	others.Wait() // after the watch nobody adds a plugin but Apply
	h.mu.Lock()
	h.run = nil
	h.mu.Unlock()
	supervisors.Wait()
	h.close()
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

// close ends what all processes shared.
func (h *Host) close() {
	if h.parent != nil {
		if err := h.parent.Remove(); err != nil {
			h.log.WithError(err).Debug("the cgroup of plugins is left")
		}
	}
}

// cgroupPrefix begins the name of the group of all plugins of a server.
const cgroupPrefix = "kubelith-plugins-"

// cgroupName is the group of all plugins of a server. There may be several servers on a host, with directories of the same path where
// each has a mount namespace: the directory itself tells them apart.
func cgroupName(dataDir string) string {
	var st unix.Stat_t
	unix.Stat(dataDir, &st) // zero without one
	return fmt.Sprintf("%s%.4x", cgroupPrefix, sha256.Sum256(fmt.Append(nil, dataDir, st.Dev, st.Ino)))
}
