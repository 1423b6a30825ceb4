package servers

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"time"

	"kubelith.io/kubelith/base/names"
)

// trialFor is how long a server that is alone accepts connections for a machine that tries whether it reaches it.
const trialFor = 30 * time.Second

// acceptor accepts connections where an etcd will, and closes them: that they were accepted is all.
type acceptor struct {
	listener net.Listener
	ended    chan struct{}
}

// acceptAt accepts connections at the port of a peer's URL, on all addresses.
func acceptAt(ctx context.Context, peerURL string) (*acceptor, error) {
	u, err := url.Parse(peerURL)
	if err != nil {
		return nil, err
	}
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", ":"+u.Port())
	if err != nil {
		return nil, err
	}
	a := &acceptor{l, make(chan struct{})}
	go func() {
		defer close(a.ended)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	return a, nil
}

// Close implements io.Closer.
func (a *acceptor) Close() error {
	err := a.listener.Close()
	<-a.ended
	return err
}

// trial accepts connections for a while at the address of an etcd that has no others yet. So a machine that is about to
// join tries whether it reaches this server before anything changes here.
type trial struct {
	mu       sync.Mutex
	acceptor *acceptor // nil: it does not run
	end      *time.Timer
}

// start begins a trial, or prolongs the one that runs.
func (t *trial) start(ctx context.Context, peerURL string) (err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.acceptor != nil {
		t.end.Reset(trialFor)
		return nil
	}
	if t.acceptor, err = acceptAt(ctx, peerURL); err != nil {
		return err
	}
	t.end = time.AfterFunc(trialFor, t.stop)
	return nil
}

// stop ends it: the port is free.
func (t *trial) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.acceptor == nil {
		return
	}
	t.end.Stop()
	_ = t.acceptor.Close()
	t.acceptor = nil
}

// rehearse tries whether this server reaches the machine, and returns the servers that the machine must reach, by name:
// those that are not missing. It changes nothing.
func (s *Server) rehearse(ctx context.Context, r request) (map[string]string, error) {
	if err := dial(ctx, r.PeerURL); err != nil {
		return nil, refuse("server %s cannot reach this machine at %s (%v): open its port %d/tcp for the servers, or set --advertise-address",
			s.opts.NodeName, r.PeerURL, err, names.PeerPort)
	}
	if !s.opts.Etcd.Open() {
		if err := s.trial.start(ctx, s.opts.Peer.URL); err != nil {
			return nil, s.portTaken(err)
		}
		return map[string]string{s.opts.NodeName: s.opts.Peer.URL}, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	reach := map[string]string{}
	for _, m := range s.opts.Etcd.Members() {
		switch _, missing := s.missing[m.ID]; {
		case m.Self:
			reach[nameOf(m)] = s.opts.Peer.URL // the others may not know it yet
		case !missing && !m.Learner:
			reach[nameOf(m)] = m.URL
		}
	}
	return reach, nil
}

func (s *Server) portTaken(err error) error {
	return refuse("server %s cannot listen for other servers (%v): stop what uses its port %d/tcp", s.opts.NodeName, err, names.PeerPort)
}

// open lets etcd have other members. An etcd that cannot listen ends the process, so the port is tried first. The
// membership is stored last: with it, etcd listens at each later start, and a process that ends before is alone again.
func (s *Server) open(ctx context.Context) error {
	if !s.opts.Etcd.Open() {
		s.trial.stop()
		port, err := acceptAt(ctx, s.opts.Peer.URL)
		if err != nil {
			return s.portTaken(err)
		}
		if err := port.Close(); err != nil {
			return err
		}
	}
	if err := s.opts.Etcd.OpenToPeers(ctx, s.opts.Peer); err != nil { // does nothing if it is open
		return err
	}
	if err := Update(s.opts.DataDir, func(m *Membership) { m.PeerURL = s.opts.Peer.URL }); err != nil {
		return err
	}
	s.keepAddress(ctx, s.opts.Etcd.Members())
	return nil
}

// dial returns why nothing accepts connections at the address of a server's etcd.
func dial(ctx context.Context, peerURL string) error {
	u, err := url.Parse(peerURL)
	if err != nil {
		return err
	}
	d := net.Dialer{Timeout: probeTimeout}
	c, err := d.DialContext(ctx, "tcp", u.Host)
	var why *net.OpError
	if errors.As(err, &why) {
		return why.Err
	}
	if err != nil {
		return err
	}
	return c.Close()
}
