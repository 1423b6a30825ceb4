// Package tunnel is an agent's side of connections that servers cannot make: it asks each server whether it reaches
// this node, and serves connections to the node through a tunnel (base/tunnel) while one does not.
//
//	ask --204--> the server reaches the node: ask again later
//	    --101--> serve, until the tunnel breaks: ask again
//
// The server decides which connections go through the tunnel; this side makes none to other addresses than the node's
// own and those of pods on it.
package tunnel

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
)

// The times of the component.
type times struct {
	round    time.Duration // between two checks of which servers there are
	again    time.Duration // until a server that reaches the node, or has no tunnels, is asked again
	taken    time.Duration // until a server that has a tunnel at another address is asked again at this one
	first    time.Duration // after a failure; it doubles,
	longest  time.Duration // up to this, or
	strange  time.Duration // to this at an address that has never answered
	patience time.Duration // for the answer of a server, which tries for two seconds to reach the node
}

func usual() times {
	return times{round: 2 * time.Second, again: 5 * time.Minute, taken: 30 * time.Second,
		first: time.Second, longest: 5 * time.Second, strange: 30 * time.Second, patience: 20 * time.Second}
}

// Options configures the component.
type Options struct {
	// Mode is tunnel.Auto or tunnel.Always.
	Mode string
	// Servers returns the servers that the cluster lists, HOST:PORT, and the address that the user has given, behind
	// which any of them may be.
	Servers func() (listed []string, given string)
	// Dial connects to a server with the certificate of the node, for HTTP/1.1.
	Dial func(ctx context.Context, server string) (net.Conn, error)
	// Client reads the Node: its pods' networks.
	Client   *rest.Config
	NodeName string
	NodeIPs  []net.IP
	Log      logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	times times
	nets  func(ctx context.Context) ([]netip.Prefix, error) // of the pods on this node

	mu     sync.Mutex
	served map[string]string // names of the servers with a tunnel, by address
	known  []netip.Prefix    // once nets has returned some
	said   logging.Once
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server {
	return &Server{opts: o, times: usual(), served: map[string]string{}}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "tunnel" }

// Needs implements lifecycle.Component. A server tries to reach the kubelet.
func (s *Server) Needs() []string { return []string{"kubelet"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if s.nets == nil {
		client, err := kubernetes.NewForConfig(s.opts.Client)
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		s.nets = func(ctx context.Context) ([]netip.Prefix, error) { return podNetworks(ctx, client, s.opts.NodeName) }
	}
	ready()
	s.rounds(ctx)
	return nil
}

// rounds keeps asking each server until ctx ends.
func (s *Server) rounds(ctx context.Context) {
	asking := map[string]context.CancelFunc{}
	var group sync.WaitGroup
	defer group.Wait()
	tick := time.NewTicker(s.times.round)
	defer tick.Stop()
	for {
		wanted := s.wanted()
		for address, stop := range asking {
			if !slices.Contains(wanted, address) {
				stop()
				delete(asking, address)
			}
		}
		for _, address := range wanted {
			if asking[address] == nil {
				one, stop := context.WithCancel(ctx)
				asking[address] = stop
				group.Go(func() { s.keep(one, address) })
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			for _, stop := range asking {
				stop()
			}
			return
		}
	}
}

// wanted returns the addresses at which servers are asked: those that the cluster lists, and the given one, as the
// listed ones may not be reachable from here.
func (s *Server) wanted() []string {
	listed, given := s.opts.Servers()
	if slices.Contains(listed, given) {
		return listed
	}
	return append(slices.Clone(listed), given)
}

// keep asks the server at an address again and again.
func (s *Server) keep(ctx context.Context, address string) {
	pause, longest := s.times.first, s.times.strange
	for ctx.Err() == nil {
		outcome := s.ask(ctx, address)
		if outcome != failed {
			pause, longest = s.times.first, s.times.longest
		}
		switch outcome {
		case later:
			reconcile.Sleep(ctx, jitter(s.times.again))
		case taken:
			reconcile.Sleep(ctx, jitter(s.times.taken))
		default:
			reconcile.Sleep(ctx, jitter(pause))
			pause = min(2*pause, longest)
		}
	}
}

// jitter spreads the requests of all agents.
func jitter(d time.Duration) time.Duration { return d + rand.N(d/4+1) }

// podNetworks returns the networks of the pods on a node.
func podNetworks(ctx context.Context, client kubernetes.Interface, node string) (all []netip.Prefix, err error) {
	n, err := client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	for _, cidr := range n.Spec.PodCIDRs {
		if p, err := netip.ParsePrefix(cidr); err == nil {
			all = append(all, p)
		}
	}
	return all, nil
}

// allow refuses connections to other addresses than this node's and its pods'. A server asks for none; but a user who
// can create Endpoints can name any address in the node's network.
func (s *Server) allow(ctx context.Context, at netip.AddrPort) error {
	if slices.ContainsFunc(s.opts.NodeIPs, func(ip net.IP) bool {
		own, ok := netip.AddrFromSlice(ip)
		return ok && own.Unmap() == at.Addr()
	}) {
		return nil
	}
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if len(known) == 0 {
		var err error
		if known, err = s.nets(ctx); err != nil {
			return fmt.Errorf("read the Node: %w", err)
		}
		s.mu.Lock()
		s.known = known // a Node's do not change
		s.mu.Unlock()
	}
	if slices.ContainsFunc(known, func(p netip.Prefix) bool { return p.Contains(at.Addr()) }) {
		return nil
	}
	return fmt.Errorf("%s is not an address of the node %s or of a pod on it", at.Addr(), s.opts.NodeName)
}
