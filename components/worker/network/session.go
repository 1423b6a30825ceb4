package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	"github.com/flannel-io/flannel/pkg/backend/hostgw"
	"github.com/flannel-io/flannel/pkg/backend/vxlan"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/vishvananda/netlink"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/names"
)

// setup is the input of flannel's backend. When it changes, another session begins.
type setup struct {
	backend Backend
	own     node
	parent  parent
}

// podMTU is the MTU for packets through our devices.
func (s setup) podMTU() int { return PodMTU(s.backend, s.parent.mtu, s.own.v6.on()) }

// session is one running backend of flannel.
//
//	begin: device made, configured --add--> peers' entries --end--> stopped; what is in the kernel stays
type session struct {
	setup  setup
	leases *manager
	cancel context.CancelFunc // of Run's context
	ended  chan struct{}      // Run has returned
}

// stopLimit bounds the end of a session. flannel retries failures for most of a minute.
const stopLimit = 5 * time.Second

// begin creates the devices and runs the backend.
func begin(ctx context.Context, want setup, cluster []netip.Prefix) (*session, error) {
	config, err := configOf(want.backend, want.own, cluster, want.podMTU())
	if err != nil {
		return nil, err
	}
	own, err := leaseOf(want.backend, want.own)
	if err != nil {
		return nil, err
	}
	s := &session{setup: want, leases: newManager(want.own.name, own), ended: make(chan struct{})}
	made, err := s.newBackend()
	if err != nil {
		return nil, err
	}
	registered, err := made.RegisterNetwork(ctx, &sync.WaitGroup{}, config)
	if err != nil {
		return nil, fmt.Errorf("flannel's backend %s: %w", want.backend, err)
	}
	// Not derived from ctx: we choose the order of the end (see manager.WatchLeases).
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	if want.backend == HostGW {
		if err := markRoutes(registered); err != nil {
			cancel()
			return nil, err
		}
		// With its context ended, host-gw still handles leases but skips its own check of the routes, which reads them
		// while they change. The component checks the routes itself.
		cancel()
	}
	go func() {
		defer close(s.ended)
		defer utilruntime.HandleCrash()
		registered.Run(running)
	}()
	return s, nil
}

func (s *session) newBackend() (backend.Backend, error) {
	p := s.setup.parent
	iface, err := net.InterfaceByIndex(p.index)
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", p.name, err)
	}
	outside := &backend.ExternalInterface{Iface: iface, IfaceName: p.name}
	if h := s.setup.own.v4; h.on() {
		outside.IfaceAddr, outside.ExtAddr = h.address.AsSlice(), h.address.AsSlice()
	}
	if h := s.setup.own.v6; h.on() {
		outside.IfaceV6Addr, outside.ExtV6Addr = h.address.AsSlice(), h.address.AsSlice()
	}
	if s.setup.backend == HostGW {
		return hostgw.New(s.leases, outside)
	}
	return vxlan.New(s.leases, outside)
}

// markRoutes sets our protocol on the routes of host-gw.
func markRoutes(n backend.Network) error {
	routes, ok := n.(*backend.RouteNetwork)
	if !ok {
		return fmt.Errorf("flannel's host-gw backend has the unknown type %T", n)
	}
	mark := func(get func(*lease.Lease) *netlink.Route) func(*lease.Lease) *netlink.Route {
		if get == nil {
			return nil
		}
		return func(l *lease.Lease) *netlink.Route {
			r := get(l)
			r.Protocol = names.RouteProtocol
			return r
		}
	}
	routes.GetRoute, routes.GetV6Route = mark(routes.GetRoute), mark(routes.GetV6Route)
	return nil
}

// add passes peers to the backend.
func (s *session) add(peers []node) error {
	var errs []error
	for _, p := range peers {
		l, err := leaseOf(s.setup.backend, p)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		s.leases.add(p.name, l)
	}
	return errors.Join(errs...)
}

// end stops the backend and leaves everything in the kernel as it is.
func (s *session) end() error {
	limit := time.NewTimer(stopLimit)
	defer limit.Stop()
	defer s.cancel()
	select {
	case <-s.leases.end():
	case <-limit.C:
		return fmt.Errorf("flannel's backend %s did not take its last leases within %s", s.setup.backend, stopLimit)
	}
	s.cancel()
	select {
	case <-s.ended:
	case <-limit.C:
		return fmt.Errorf("flannel's backend %s did not stop within %s", s.setup.backend, stopLimit)
	}
	return nil
}
