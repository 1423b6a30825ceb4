// Package addresswatch ends a node whose addresses have changed. Certificates, the Node, the API's advertised address,
// DNS and the pod network use the addresses found at the start, and their upstream parts cannot change them later (ADR
// 028): the service manager starts the process again.
package addresswatch

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	// lookEvery is how long after a change on the host the node's addresses are looked at, and how often while one is
	// missing.
	lookEvery = 5 * time.Second
	// lookAnyway is how often they are looked at without a change, in case the kernel's events cannot be had.
	lookAnyway = time.Minute
	// lookTimes is how often in a row new addresses must be seen: DHCP removes the old address before it adds the new
	// one.
	lookTimes = 3
)

// Watch ends a node whose addresses have changed. A nil Watch, of addresses that were configured, does nothing.
type Watch struct {
	had   []string
	every time.Duration
	// follow calls changed when an address of the host may have changed, until ctx ends.
	follow func(ctx context.Context, changed func())
	// now returns the addresses that replaced had, and whether any of had is missing.
	now func(had []string) (now []string, missing bool, err error)
}

// New watches the addresses that were found on the host for the networks of a cluster.
func New(had, clusterCIDRs []string) *Watch {
	return &Watch{
		had:   had,
		every: lookEvery,
		follow: func(ctx context.Context, changed func()) {
			netevents.Follow(ctx, netlink.AddrSubscribe, changed, func(netlink.AddrUpdate) { changed() })
		},
		now: func(had []string) ([]string, bool, error) { return config.MovedNodeIPs(clusterCIDRs, had) },
	}
}

// Run returns when ctx ends or when it has called end, with a Moved. If the addresses cannot be read, it tries again.
func (w *Watch) Run(ctx context.Context, end func(error)) {
	if w == nil {
		return
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	changed := reconcile.NewSignal()
	var following sync.WaitGroup
	following.Go(func() { w.follow(ctx, changed.Send) })
	var last []string
	times := 0
	reconcile.Loop(ctx, changed, w.every, func() (again time.Duration) {
		now, missing, err := w.now(w.had)
		if err == nil && !missing {
			last, times = nil, 0
			return lookAnyway
		}
		if err != nil || !slices.Equal(now, last) {
			last, times = now, 0
		}
		if len(now) > 0 {
			times++
		}
		if times == lookTimes {
			end(Moved{w.had, now})
			stop()
		}
		return w.every
	})
	following.Wait()
}

// Moved is the error of a process whose node has other addresses now.
type Moved struct{ from, to []string }

func (m Moved) Error() string {
	return fmt.Sprintf("the address of this node changed from %s to %s: exiting, "+
		"so that the service manager restarts this process with it; pods keep running",
		strings.Join(m.from, ","), strings.Join(m.to, ","))
}
