package network

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
)

// manager is where flannel's backend learns of the other nodes: its side of one session.
//
// Only additions are sent. flannel makes what is missing, and doing so twice does no harm; what is to go away the
// component removes itself, because flannel tries for minutes to remove what is not there any more, and because what an
// earlier process left has to be removed, too.
type manager struct {
	config     *subnet.Config
	own        lease.Lease
	mac4, mac6 string

	mu      sync.Mutex
	pending map[string]lease.Lease // by node; what flannel has not taken yet
	wake    chan struct{}          // one pending signal at most

	closing chan struct{}
	closed  chan struct{}
}

var _ subnet.Manager = (*manager)(nil)

func newManager(config *subnet.Config, nodeName string, own lease.Lease) *manager {
	return &manager{
		config:  config,
		own:     own,
		mac4:    vtepMAC(nodeName, ipv4).String(),
		mac6:    vtepMAC(nodeName, ipv6).String(),
		pending: map[string]lease.Lease{},
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
		closed:  make(chan struct{}),
	}
}

// add hands a node to flannel. It does not wait.
func (m *manager) add(name string, l lease.Lease) {
	m.mu.Lock()
	m.pending[name] = l
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// take returns what is pending, in the order of the names.
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

// end ends the stream of leases; closed tells when flannel has taken all of it.
func (m *manager) end() (closed <-chan struct{}) {
	close(m.closing)
	return m.closed
}

// WatchLeases implements subnet.Manager. flannel's backends must be stopped in an order, or they wait for
// themselves: first their stream of leases ends, then their context. So the end comes by `end` alone. The empty message before it is taken
// only when everything before it has been handed to the backend's loop.
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

// GetNetworkConfig implements subnet.Manager.
func (m *manager) GetNetworkConfig(context.Context) (*subnet.Config, error) { return m.config, nil }

// GetStoredMacAddresses implements subnet.Manager.
func (m *manager) GetStoredMacAddresses(context.Context) (string, string) { return m.mac4, m.mac6 }

// Name implements subnet.Manager.
func (m *manager) Name() string { return "kubelith" }

// errUnused is for what flannel's own main program calls and its backends do not (read in v0.28.10).
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
