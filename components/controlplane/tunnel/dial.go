package tunnel

import (
	"context"
	"net"

	"kubelith.io/kubelith/base/tunnel"
)

// Dial connects to an address, as net.Dialer does.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// Kubelet returns a dialer for connections to kubelets: through the tunnel of the node that has the address, or direct.
func (s *Server) Kubelet(direct Dial) Dial {
	return s.dialer(direct, func(v *view, address string) target { return v.kubelet(address) })
}

// Cluster returns a dialer for connections to Services, pods and nodes.
func (s *Server) Cluster(direct Dial) Dial {
	return s.dialer(direct, func(v *view, address string) target { return v.find(address, s.has) })
}

// target is where a connection goes: to an address, on a node if that may need a tunnel.
type target struct {
	node    string
	address string
}

func (s *Server) dialer(direct Dial, find func(*view, string) target) Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		route := func() (*tunnel.Session, string, <-chan struct{}) {
			cluster, changed := s.state() // before the session is looked up, so that none is missed
			if cluster == nil {
				return nil, address, nil
			}
			to := find(cluster, address)
			if to.node == "" {
				return nil, to.address, nil
			}
			return s.session(to.node), to.address, changed
		}
		return either(ctx, route, func(ctx context.Context, address string) (net.Conn, error) { return direct(ctx, network, address) })
	}
}

// either dials through the session that route returns. While there is none it dials directly, and stops that when there
// is one: after a restart of this server, agents need a moment to open their tunnels again, and a connection to one
// that cannot be reached would wait for half a minute. route also returns a channel that is closed when it may return a
// session; nil: it will return none.
func either(
	ctx context.Context,
	route func() (*tunnel.Session, string, <-chan struct{}),
	direct func(context.Context, string) (net.Conn, error),
) (net.Conn, error) {
	session, address, changed := route()
	switch {
	case session != nil:
		return session.Dial(ctx, address)
	case changed == nil:
		return direct(ctx, address)
	}
	type result struct {
		conn net.Conn
		err  error
	}
	dialling, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan result, 1)
	go func() {
		c, err := direct(dialling, address)
		done <- result{c, err}
	}()
	for {
		select {
		case r := <-done:
			return r.conn, r.err
		case <-changed:
		}
		if session, address, changed = route(); session != nil {
			stop()
			if r := <-done; r.err == nil { // just now
				return r.conn, nil
			}
			return session.Dial(ctx, address)
		}
	}
}
