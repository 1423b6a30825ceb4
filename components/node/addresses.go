package node

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/components/config"
)

const (
	// lookEvery is how often the node's addresses are looked at. It costs one question to the kernel.
	lookEvery = 5 * time.Second
	// lookTimes is how often new addresses must be seen in a row: DHCP takes the old one away before it gives the new one.
	lookTimes = 3
)

// addressWatch ends a node whose addresses have changed. Certificates, the Node, the API's advertised address, DNS and the pod network are made of
// them at the start, and upstream's parts of it cannot be told later (ADR 028): the service manager starts the process again.
type addressWatch struct {
	had   []string
	every time.Duration
	// now returns the addresses that took the place of had; none when all is as it was.
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

// run returns when ctx ends or when it has called end. What cannot be read is looked at again.
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

// moved is why a process ends whose node has other addresses now.
type moved struct{ from, to []string }

func (m moved) Error() string {
	return fmt.Sprintf("the address of this node was %s and is %s: ending, so that the service manager starts this again with it; pods go on running",
		strings.Join(m.from, ","), strings.Join(m.to, ","))
}
