package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/coredns/caddy"
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/plugin"
	"github.com/coredns/coredns/request"
	"github.com/miekg/dns"
	"github.com/pires/go-proxyproto"
)

const (
	// sourcesPlugin is the directive `kubelith_sources CIDR...`.
	sourcesPlugin = "kubelith_sources"
	// localFor is how long the list of the host's addresses is used before it is read again.
	localFor = 5 * time.Second
)

// sources answers queries from given networks and from this host and refuses all others, so that a node with a public
// address is no open resolver. Every address of the host counts, including later ones: masquerading may pick any of
// them as the source of a query that a host process sends to the cluster DNS address. A TCP connection from another
// source is closed before a byte of it is read.
type sources struct {
	next     plugin.Handler
	networks []netip.Prefix
	list     func() ([]net.Addr, error) // net.InterfaceAddrs

	mu    sync.Mutex
	local map[netip.Addr]bool
	until time.Time
}

func setupSources(c *caddy.Controller) error {
	s := &sources{list: net.InterfaceAddrs}
	c.Next() // to the directive's name
	for _, arg := range c.RemainingArgs() {
		network, err := netip.ParsePrefix(arg)
		if err != nil {
			return plugin.Error(sourcesPlugin, fmt.Errorf("network %q: %w", arg, err))
		}
		s.networks = append(s.networks, network.Masked())
	}
	config := dnsserver.GetConfig(c)
	// CoreDNS's only hook for accepted connections; there is no proxy.
	config.ProxyProtoConnPolicy = s.accept
	config.AddPlugin(func(next plugin.Handler) plugin.Handler {
		s.next = next
		return s
	})
	return nil
}

// accept decides about a new TCP connection. UDP queries are decided in ServeDNS.
func (s *sources) accept(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
	if from, ok := o.Upstream.(*net.TCPAddr); ok && !s.allowed(from.IP.String(), time.Now()) {
		return proxyproto.REJECT, proxyproto.ErrInvalidUpstream // closes this connection, and continues to listen
	}
	return proxyproto.SKIP, nil
}

// Name is the plugin's name.
func (s *sources) Name() string { return sourcesPlugin }

// ServeDNS passes a query on or answers REFUSED.
func (s *sources) ServeDNS(ctx context.Context, w dns.ResponseWriter, r *dns.Msg) (int, error) {
	state := request.Request{W: w, Req: r}
	if s.allowed(state.IP(), time.Now()) {
		return plugin.NextOrFailure(s.Name(), s.next, ctx, w, r)
	}
	return dns.RcodeRefused, nil // the server writes the answer
}

func (s *sources) allowed(source string, now time.Time) bool {
	ip, err := netip.ParseAddr(source)
	if err != nil {
		return false
	}
	ip = ip.Unmap().WithZone("")
	if ip.IsLoopback() {
		return true
	}
	for _, n := range s.networks {
		if n.Contains(ip) {
			return true
		}
	}
	return s.isLocal(ip, now)
}

func (s *sources) isLocal(ip netip.Addr, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.After(s.until) {
		if addrs, err := s.list(); err == nil { // otherwise the old list stays in use
			s.local = make(map[netip.Addr]bool, len(addrs))
			for _, a := range addrs {
				if n, ok := a.(*net.IPNet); ok {
					if addr, ok := netip.AddrFromSlice(n.IP); ok {
						s.local[addr.Unmap()] = true
					}
				}
			}
		}
		s.until = now.Add(localFor)
	}
	return s.local[ip]
}
