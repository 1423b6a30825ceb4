// Package recorder keeps the flight recorder (trace/record) of this process: it forgets what is too old and, on an
// agent, sends what happened on the node to the server. With a collector it exports everything that is recorded here.
//
// It records nothing itself: the sources do, in trace/spans and in the apiserver and the scheduler of a server. The
// server's side of what agents send is trace/api.
package recorder

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/trace/api"
	"kubelith.io/kubelith/trace/otlp"
	"kubelith.io/kubelith/trace/record"
)

// expireEvery is how often old records are forgotten.
const expireEvery = time.Minute

// Options of the component.
type Options struct {
	// Record is the flight recorder of the process; nil: it is switched off.
	Record   *record.Store
	NodeName string
	// Client acts as the node that sends its records to the server; nil on a server, where they are.
	Client *rest.Config
	// Collector is the URL of the OTLP collector to export to, which the configuration has checked; empty: none.
	Collector string
	Log       logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts     Options
	sender   *sender        // nil: nothing is sent
	exporter *otlp.Exporter // nil: nothing is exported
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server {
	s := &Server{opts: o}
	if o.Record != nil && o.Client != nil {
		s.sender = &sender{from: o.Record, node: o.NodeName, log: o.Log, limit: record.MaxBatch}
	}
	if o.Record != nil && o.Collector != "" {
		s.exporter = otlp.NewExporter(o.Collector, o.Record, o.Log)
	}
	return s
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "recorder" }

// Needs implements lifecycle.Component: nothing. What happens while there is no server is kept.
func (s *Server) Needs() []string { return nil }

// RestartPolicy implements lifecycle.Restarter. Two would send the same records; one goes on where the last one was.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if s.opts.Record == nil {
		ready()
		<-ctx.Done()
		return nil
	}
	var running sync.WaitGroup
	ctx, stop := context.WithCancel(ctx)
	defer func() { stop(); running.Wait() }()
	if s.sender != nil {
		client := rest.CopyConfig(s.opts.Client)
		client.Timeout = sendTimeout
		server, err := api.NewClient(client)
		if err != nil {
			return fmt.Errorf("client: %w", err)
		}
		s.sender.post = server.Send
		running.Go(func() { s.sender.run(ctx) })
	}
	if s.exporter != nil {
		running.Go(func() { s.exporter.Run(ctx) })
	}
	ready()
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.opts.Record.Expire()
		case <-ctx.Done():
			return nil
		}
	}
}
