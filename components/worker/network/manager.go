package network

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"

	"kubelith.io/kubelith/base/reconcile"
)

// manager gives flannel's backend the other nodes: its side of one session.
//
// It sends additions only. flannel creates missing entries, and doing so twice does no harm. The component removes
// entries itself: flannel retries the removal of a missing entry for minutes, and entries of an earlier process must be
// removed, too.
type manager struct {
	own        lease.Lease
	mac4, mac6 string

	mu      sync.Mutex
	pending map[string]lease.Lease // by node; not yet taken by flannel
	wake    reconcile.Signal

	closing chan struct{}
	closed  chan struct{}
}

var _ subnet.Manager = (*manager)(nil)

func newManager(nodeName string, own lease.Lease) *manager {
	return &manager{
		own:     own,
		mac4:    vtepMAC(nodeName, ipv4).String(),
		mac6:    vtepMAC(nodeName, ipv6).String(),
		pending: map[string]lease.Lease{},
		wake:    reconcile.NewSignal(),
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
}

// add passes a node to flannel. It does not wait.
func (m *manager) add(name string, l lease.Lease) {
	m.mu.Lock()
	m.pending[name] = l
	m.mu.Unlock()
	m.wake.Send()
}

// take returns the pending leases, in the order of the names.
func (m *manager) take() (events []lease.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := make([]string, 0, len(m.pending))
	for name := range m.pending {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		events = append(events, lease.Event{Type: lease.EventAdded, Lease: m.pending[name]})
	}
	clear(m.pending)
	return events
}

// end ends the stream of leases; closed signals that flannel has taken all of them.
func (m *manager) end() (closed <-chan struct{}) {
	close(m.closing)
	return m.closed
}

// WatchLeases implements subnet.Manager. flannel's backends must be stopped in order, or they deadlock: first their
// stream of leases ends, then their context. So only `end` ends the stream. The empty message before the end is taken
// only when everything before it has reached the backend's loop.
func (m *manager) WatchLeases(_ context.Context, receiver chan []lease.LeaseWatchResult) error {
	defer close(m.closed)
	defer close(receiver)
	for {
		select {
		case <-m.wake:
			if events := m.take(); len(events) > 0 {
				receiver <- []lease.LeaseWatchResult{{Events: events}}
			}
		case <-m.closing:
			receiver <- nil
			return nil
		}
	}
}

// AcquireLease implements subnet.Manager: the lease is the Node's.
func (m *manager) AcquireLease(_ context.Context, attrs *lease.LeaseAttrs) (*lease.Lease, error) {
	l := m.own
	l.Attrs = *attrs
	return &l, nil
}

// GetNetworkConfig implements subnet.Manager. flannel's vxlan calls it to create a deleted device again, on a goroutine
// that replaces the device while another one adds peers to it, without a lock (as of v0.28.10): their entries would go
// to the device that is gone. The component begins another session then (ensureSession), so that goroutine ends here.
func (*manager) GetNetworkConfig(context.Context) (*subnet.Config, error) {
	runtime.Goexit()
	return nil, errUnused
}

// GetStoredMacAddresses implements subnet.Manager.
func (m *manager) GetStoredMacAddresses(context.Context) (string, string) { return m.mac4, m.mac6 }

// Name implements subnet.Manager.
func (m *manager) Name() string { return "kubelith" }

// errUnused is for methods that flannel's main program calls and its backends do not (as of v0.28.10).
var errUnused = errors.New("flannel's backends do not use this")

// GetStoredPublicIP implements subnet.Manager.
func (m *manager) GetStoredPublicIP(context.Context) (string, string) { return "", "" }

// HandleSubnetFile implements subnet.Manager.
func (m *manager) HandleSubnetFile(string, *subnet.Config, bool, ip.IP4Net, ip.IP6Net, int) error {
	return errUnused
}

// RenewLease implements subnet.Manager.
func (m *manager) RenewLease(context.Context, *lease.Lease) error { return errUnused }

// WatchLease implements subnet.Manager.
func (m *manager) WatchLease(context.Context, ip.IP4Net, ip.IP6Net, chan []lease.LeaseWatchResult) error {
	return errUnused
}

// CompleteLease implements subnet.Manager.
func (m *manager) CompleteLease(context.Context, *lease.Lease, *sync.WaitGroup) error {
	return errUnused
}
