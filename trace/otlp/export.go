package otlp

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/trace/record"
)

const (
	// exportRecords is how many records an upload has at most.
	exportRecords = 500
	// exportTimeout bounds an upload.
	exportTimeout = 10 * time.Second
)

// Exporter exports what a store has to a collector. Its queue is the store: what a collector that is away does not take
// in time goes with the store's bounds, and nothing waits for it.
type Exporter struct {
	from   *record.Store
	url    string
	log    logrus.FieldLogger
	client otlptrace.Client // of a run

	sent uint64 // the last Seq that the collector has
	at   int64  // when it was read from the store
}

// NewExporter returns an exporter to the collector of a URL: http://HOST:PORT or https://HOST:PORT, by gRPC.
func NewExporter(url string, from *record.Store, log logrus.FieldLogger) *Exporter {
	return &Exporter{from: from, url: url, log: log}
}

// Run exports until ctx ends. It may be called again then, and goes on where it was.
func (e *Exporter) Run(ctx context.Context) {
	e.client = otlptracegrpc.NewClient(
		otlptracegrpc.WithEndpointURL(e.url),
		otlptracegrpc.WithTimeout(exportTimeout),
		otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}), // it is ours
	)
	if err := e.client.Start(ctx); err != nil { // it does not connect yet
		e.log.Warnf("cannot export spans to %s: %v", e.url, err)
		return
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = e.client.Stop(ctx) // it only closes the connection
	}()
	var said logging.Once
	failing := false
	e.from.Feed(ctx, func() uint64 { return e.sent }, e.export, func(err error) {
		if err == nil {
			if failing {
				e.log.Infof("exporting spans to %s again", e.url)
			}
			said.News("", "")
		} else if said.News("", err.Error()) {
			e.log.Warnf("cannot export spans to %s, retrying: %v", e.url, err)
		}
		failing = err != nil
	})
}

// export uploads one batch.
func (e *Exporter) export(ctx context.Context) error {
	now := e.from.Clock().Now()
	records, next := e.from.Since(e.sent, exportRecords)
	if spans := e.spans(records); len(spans) > 0 {
		ctx, cancel := context.WithTimeout(ctx, exportTimeout)
		defer cancel()
		if err := e.client.UploadTraces(ctx, spans); err != nil {
			return fmt.Errorf("upload: %w", err)
		}
	}
	e.sent, e.at = next, now
	return nil
}

// spans returns records as spans. One that has only been counted again is exported.
func (e *Exporter) spans(records []record.Record) []*tracepb.ResourceSpans {
	var b batch
	ids := map[string][]byte{} // of traces, by object
	for i := range records {
		r := &records[i]
		if r.Count > 1 && r.End() < e.at {
			continue
		}
		o, ok := e.from.Object(r.Object)
		if !ok { // it has just been forgotten
			continue
		}
		name := key(o.Ref)
		if ids[name] == nil {
			ids[name] = TraceID(o, Root(o, e.object))
		}
		b.add(r.Node, recordSpans(o, ids[name], creation(name), r)...)
	}
	return b.resources
}

func (e *Exporter) object(uid string) (record.Object, bool) {
	return e.from.Object(record.Ref{UID: uid})
}
