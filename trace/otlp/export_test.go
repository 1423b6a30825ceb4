package otlp

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	collectorpb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"

	"kubelith.io/kubelith/trace/record"
)

// collector is an OTLP receiver in this process.
type collector struct {
	collectorpb.UnimplementedTraceServiceServer
	mu    sync.Mutex
	fails int // calls that fail first
	spans []*tracepb.Span
	came  chan struct{}
}

// Export implements collectorpb.TraceServiceServer.
func (c *collector) Export(_ context.Context, r *collectorpb.ExportTraceServiceRequest) (*collectorpb.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fails > 0 {
		c.fails--
		return nil, errors.New("busy")
	}
	for _, resource := range r.ResourceSpans {
		for _, s := range resource.ScopeSpans {
			c.spans = append(c.spans, s.Spans...)
		}
	}
	c.came <- struct{}{}
	return &collectorpb.ExportTraceServiceResponse{}, nil
}

func TestExport(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &collector{fails: 1, came: make(chan struct{}, 10)}, grpc.NewServer()
	collectorpb.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(l) }()
	defer server.Stop()

	log := logrus.New()
	log.SetOutput(io.Discard)
	store := record.NewStore(record.Options{})
	e := NewExporter("http://"+l.Addr().String(), store, log)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); e.Run(ctx) }()
	store.Describe(pod())
	for _, r := range records() {
		r.Object = pod().Ref
		store.Add(r)
	}
	await := func(n int) {
		for {
			c.mu.Lock()
			got := len(c.spans)
			c.mu.Unlock()
			if got >= n {
				return
			}
			select {
			case <-c.came:
			case <-time.After(time.Minute):
				t.Fatalf("the collector has %d spans, want %d", got, n)
			}
		}
	}
	await(5) // three records, two steps
	stop()
	<-ended

	// One that is counted again is no other span.
	_, e.sent = store.Since(0, exportRecords) // the end may have come before the answer
	repeated := record.Record{Object: pod().Ref, Stage: record.Probe, Name: "main", Start: store.Clock().Now()}
	store.Add(repeated)
	if err := e.exportTo(t, c); err != nil {
		t.Fatal(err)
	}
	repeated.Start++
	store.Add(repeated)
	if err := e.exportTo(t, c); err != nil {
		t.Fatal(err)
	}
	if n := len(c.spans); n != 6 {
		t.Errorf("the collector has %d spans, want the five of before and one of the probe", n)
	}
}

// local is a client without a connection.
type local struct{ c *collector }

func (local) Start(context.Context) error { return nil }
func (local) Stop(context.Context) error  { return nil }
func (l local) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	_, err := l.c.Export(ctx, &collectorpb.ExportTraceServiceRequest{ResourceSpans: spans})
	return err
}

func (e *Exporter) exportTo(t *testing.T, c *collector) error {
	e.client = local{c}
	return e.export(t.Context())
}
