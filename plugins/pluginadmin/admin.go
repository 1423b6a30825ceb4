// Package pluginadmin shows plugins to the operator and takes the operator's commands: the socket of `kubelith plugin`,
// metrics, Events and conditions of the Node, and the configuration file, which is reloaded when it changes. Its
// component is "plugin-control".
//
// plugins/host runs the plugins and notifies the Observer of this package.
package pluginadmin

import (
	"context"
	"fmt"
	"net"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/unixsocket"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
)

// Host runs the plugins.
type Host interface {
	plugins.Set
	States() []host.State
	// Restart replaces the process of a plugin, and stops it once the new one is ready.
	Restart(name string) error
}

// Options of the component.
type Options struct {
	Host     Host
	Observer *Observer // the host's
	Socket   string    // path, for `kubelith plugin`; mode 0600
	NodeName string
	Client   *rest.Config // acts as client.Plugins
	// File is the configuration file that Reload reads; Reload logs errors itself. Empty: no reload.
	File     string
	Reload   func()
	Register prometheus.Registerer
	Log      logrus.FieldLogger
}

// Server is the component. It needs no other, so that an operator can inspect plugins while the API does not answer,
// perhaps because of one of them.
type Server struct {
	opts Options
	// metrics are registered once, by the first run: the registry cannot unregister a collector that describes nothing.
	metrics    runMetrics
	registered sync.Once
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component. It starts nothing.
func New(o Options) *Server { return &Server{opts: o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "plugin-control" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return nil }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run implements lifecycle.Component. It is ready when the socket accepts connections.
func (s *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	listener, err := unixsocket.Listen(s.opts.Socket)
	if err != nil {
		return err
	}
	return s.run(ctx, cs, listener, ready)
}

// run is Run with a client and an open socket.
func (s *Server) run(ctx context.Context, cs kubernetes.Interface, listener net.Listener, ready func()) error {
	defer listener.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer s.metrics.set(newCollector(ctx, s.opts.Host, s.opts.Observer, s.opts.Log))()
	var err error
	s.registered.Do(func() { err = s.opts.Register.Register(&s.metrics) })
	if err != nil {
		return fmt.Errorf("metrics: %w", err)
	}
	var running sync.WaitGroup
	defer func() { cancel(); running.Wait() }()
	running.Go(func() {
		defer utilruntime.HandleCrash()
		s.report(ctx, cs)
	})
	if s.opts.File != "" {
		running.Go(func() {
			defer utilruntime.HandleCrash()
			watchFile(ctx, s.opts.File, s.opts.Reload, s.opts.Log)
		})
	}
	ready()
	return serve(ctx, listener, s.handler())
}
