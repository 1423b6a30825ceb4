package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/base/config"
)

const (
	// lookEvery is how often the node's addresses are checked. A check is one question to the kernel.
	lookEvery = 5 * time.Second
	// lookTimes is how often in a row new addresses must be seen: DHCP removes the old address before it adds the new
	// one.
	lookTimes = 3
)

// addressWatch ends a node whose addresses have changed. Certificates, the Node, the API's advertised address, DNS and
// the pod network use the addresses found at the start, and their upstream parts cannot change them later (ADR 028):
// the service manager starts the process again.
type addressWatch struct {
	had   []string
	every time.Duration
	// now returns the addresses that replaced had; none when nothing has changed.
	now func(had []string) ([]string, error)
}

// follow watches the addresses that were found on the host.
func (p *process) follow(cfg *config.Node, clusterCIDRs []string) {
	if cfg.NodeIPDetected {
		p.addresses = &addressWatch{had: cfg.NodeIP, every: lookEvery, now: func(had []string) ([]string, error) {
			return config.MovedNodeIPs(clusterCIDRs, had)
		}}
	}
}

// run returns when ctx ends or when it has called end. If the addresses cannot be read, it tries again.
func (w *addressWatch) run(ctx context.Context, end func(error)) {
	if w == nil {
		return
	}
	tick := time.NewTicker(w.every)
	defer tick.Stop()
	var last []string
	for times := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now, err := w.now(w.had)
		if err != nil || len(now) == 0 {
			last, times = nil, 0
			continue
		}
		if !slices.Equal(now, last) {
			last, times = now, 0
		}
		if times++; times == lookTimes {
			end(moved{w.had, now})
			return
		}
	}
}

// moved is the error of a process whose node has other addresses now.
type moved struct{ from, to []string }

func (m moved) Error() string {
	return fmt.Sprintf("the address of this node changed from %s to %s: exiting, so that the service manager restarts this process with it; pods keep running",
		strings.Join(m.from, ","), strings.Join(m.to, ","))
}
