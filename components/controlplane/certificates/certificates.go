// Package certificates is the component "certificates": it renews the certificates of a server that runs for longer
// than they are valid. Servers and clients read the files again: the apiserver every minute (dynamiccertificates), its
// clients and the kubelet likewise.
//
// The certificates at the start of the process are created before any component (components/node).
// components/worker/join renews an agent's certificate.
package certificates

import (
	"cmp"
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
)

// every is how often certificates are checked. They have at least 90 days left when they are renewed, so that many
// tries may fail; but certificates from a time when the clock was ahead are invalid once it is set back, and are
// created again.
const every = 10 * time.Minute

// Options of the component. Renew and Log are required.
type Options struct {
	// Every is how often certificates are checked; 0: every ten minutes.
	Every time.Duration
	// Renew renews certificates that will expire soon, and returns the names of the files that it has written.
	Renew func() (changed []string, err error)
	Log   logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts Options
	work lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is renewed before Run.
func New(o Options) *Server {
	o.Every = cmp.Or(o.Every, every)
	return &Server{opts: o}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "certificates" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return nil }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: it fails when a renewal takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	ready()
	tick := time.NewTicker(s.opts.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.renew()
		}
	}
}

func (s *Server) renew() {
	defer s.work.Begin("renewing certificates")()
	changed, err := s.opts.Renew()
	if err != nil {
		s.opts.Log.Errorf("cannot renew the certificates, retrying in %s: %v", s.opts.Every, err)
	}
	for _, name := range changed {
		s.opts.Log.Infof("renewed %s", name)
	}
}
