// Package vip is the component "vip": one address at which clients reach the API while any server lives.
//
//	server A                                     server B, C
//	Lease kube-system/kubelith-vip <-- renews    wait for the Lease to end
//	  | each renewal: "mine until T"
//	  v
//	the address on the interface, until T        probe, then the address and announcements to the neighbours
//
// The holder of the Lease carries the address. It gives it up before the Lease can end by its own clock, and the kernel
// removes it then by itself (the address has a lifetime): a server that is stopped, killed, paused or cut off does not
// carry what another one has taken. Neighbours learn the change from gratuitous ARP (IPv4) or unsolicited neighbour
// advertisements (IPv6).
//
// The Lease names the address, so that a server without the setting carries the one of the others, with a certificate
// for it. The leader of the cluster (components/controlplane/election) is independent of it: that Lease lasts longer.
package vip

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
)

// followEvery is how often a server without an address checks whether the others have one, and how long one that cannot
// carry the address leaves it to the others.
const followEvery = 10 * time.Second

// Options configures the component. All fields without a stated default are required.
type Options struct {
	// NodeName is this server's, unique in the cluster.
	NodeName string
	// Address is the one to carry; invalid: that of the other servers, once they have one.
	Address netip.Addr
	// Follow makes the server carry another address once the others do. It is implied without an Address.
	Follow bool
	// Client gets, creates and updates the Lease.
	Client *rest.Config
	// Alone reports whether no other server uses this one's data; that may change.
	Alone func() bool
	// SlowSync returns how long a sync on the API's disk takes, if that is long, else 0. Nil: the disk is not slow.
	SlowSync func() time.Duration
	// Certify gives the API a certificate that covers the address.
	Certify func(netip.Addr) error
	// API is where this server serves the API: ADDRESS:PORT.
	API string
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts   Options
	timing timing
	on     func(netip.Addr) (carrier, error) // the interface of an address; a fake in tests
	work   lifecycle.Watchdog
	wake   reconcile.Signal // the fields below have changed

	mu    sync.Mutex
	until time.Time  // the Lease is this server's until then, with a margin
	named netip.Addr // what the Lease has named last

	complaint string // the last one; of the goroutine that carries the address, or else of Run
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is touched before Run.
func New(o Options) *Server {
	return &Server{opts: o, timing: defaultTiming(), on: find, wake: reconcile.NewSignal()}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "vip" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter. Two would both renew the Lease.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Healthy implements lifecycle.Health: it fails when the kernel takes too long for a change.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return err
	}
	ready()
	if os.Geteuid() != 0 { // it cannot add addresses
		<-ctx.Done()
		return nil
	}
	if s.opts.SlowSync != nil {
		s.timing = s.timing.on(s.opts.SlowSync())
	}
	address := s.opts.Address
	for ctx.Err() == nil {
		if !address.IsValid() {
			if address = s.discover(ctx, cs); !address.IsValid() {
				return nil
			}
		}
		if err := s.certify(ctx, address); err != nil {
			return err
		}
		at, err := s.on(address)
		if err != nil { // this server is in another network, perhaps
			s.complain("not holding the virtual address: %v", err)
			_, _, _ = s.lock(cs, address).Get(ctx) // the others may have another one by now
		} else if err := s.compete(ctx, cs, at, address); err != nil {
			return err
		}
		if s.complaint != "" {
			reconcile.Sleep(ctx, followEvery)
		}
		address = s.other(address)
	}
	return nil
}

// complain logs why the address cannot be carried, once.
func (s *Server) complain(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != s.complaint {
		s.complaint = text
		s.opts.Log.Warn(text)
	}
}

// discover returns the address that the Lease names, once it does; the zero Addr when ctx has ended.
func (s *Server) discover(ctx context.Context, cs kubernetes.Interface) netip.Addr {
	l := s.lock(cs, netip.Addr{})
	for ctx.Err() == nil {
		if !s.opts.Alone() {
			_, _, _ = l.Get(ctx) // of a cluster without an address there is none
			if address := s.other(netip.Addr{}); address.IsValid() {
				s.opts.Log.Infof("the servers of this cluster have the virtual address %s", address)
				return address
			}
		}
		reconcile.Sleep(ctx, followEvery)
	}
	return netip.Addr{}
}

// other returns the address that the Lease names, if this server may carry it, else the given one.
func (s *Server) other(address netip.Addr) netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.named.IsValid() && (s.opts.Follow || !s.opts.Address.IsValid()) {
		return s.named
	}
	return address
}

// certify returns when the API's certificate covers the address.
func (s *Server) certify(ctx context.Context, address netip.Addr) error {
	if err := s.opts.Certify(address); err != nil {
		return fmt.Errorf("create a certificate for the virtual address %s: %w", address, err)
	}
	for waited := 0; ctx.Err() == nil; waited++ {
		err := serves(ctx, s.opts.API, address)
		if err == nil {
			return nil
		}
		if waited == 120 {
			s.opts.Log.Warnf("waiting to hold the virtual address %s: the API at %s does not serve it: %v", address, s.opts.API, err)
		}
		reconcile.Sleep(ctx, time.Second)
	}
	return nil
}

// serves returns why clients that use the address would refuse the certificate of the API.
func serves(ctx context.Context, api string, address netip.Addr) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	// The signer does not matter, and this server trusts itself.
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}}
	c, err := d.DialContext(ctx, "tcp", api)
	if err != nil {
		return err
	}
	defer c.Close()
	return c.(*tls.Conn).ConnectionState().PeerCertificates[0].VerifyHostname(address.String())
}

// compete tries to get the Lease, and carries the address meanwhile whenever it has it. It returns when ctx ends, when
// the Lease names an address that this server follows, or when it cannot carry the address; then it does not carry it
// any more, and leaves the Lease to others.
func (s *Server) compete(ctx context.Context, cs kubernetes.Interface, at carrier, address netip.Addr) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	l := s.lock(cs, address)
	if s.opts.Follow || !s.opts.Address.IsValid() {
		l.changed = end
	}
	var carrying sync.WaitGroup
	carrying.Go(func() {
		defer end()
		s.carry(ctx, at, address)
	})
	err := l.elect(ctx)
	end()
	carrying.Wait()
	l.release()
	return err
}
