// Package control is what an operator sees of plugins and does with them: the socket behind `kubelith plugin`,
// metrics, Events and conditions of the Node, and the configuration file, which is read again when it changes.
//
// plugins/host runs the plugins and tells the Observer of this package what happens to them.
package control

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

	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
)

// Host is what runs the plugins.
type Host interface {
	plugins.Set
	States() []host.State
	// Restart ends the process of a plugin once another one is ready.
	Restart(name string) error
}

// Options of the component.
type Options struct {
	Host     Host
	Observer *Observer // that the host tells
	Socket   string    // that `kubelith plugin` calls; only root may
	NodeName string
	Client   *rest.Config // acts as client.Plugins
	// File is the configuration, which Reload reads; it says itself what is wrong. Empty: there is none.
	File     string
	Reload   func()
	Register prometheus.Registerer
	Log      logrus.FieldLogger
}

// Server is the component. It needs nothing, so that an operator can look at plugins while the API does not answer,
// maybe because of one of them.
type Server struct {
	opts Options
	// metrics are registered once, by the first run: what the registry does not know by its names cannot be taken out again.
	metrics    runMetrics
	registered sync.Once
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{opts: o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "plugin-control" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return nil }

// Run implements lifecycle.Component. It is ready when the socket is open.
func (s *Server) Run(ctx context.Context, ready func()) error {
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	listener, err := listen(s.opts.Socket)
	if err != nil {
		return err
	}
	return s.run(ctx, cs, listener, ready)
}

// run is Run with what it has opened.
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
