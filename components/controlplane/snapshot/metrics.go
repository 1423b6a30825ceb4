package snapshot

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// meters are the metrics of the component. Nil, as in tests, counts nothing; and upstream's do nothing before they are
// registered.
type meters struct {
	lastSuccess, lastBytes, lastUpload *metrics.Gauge
	results, uploads                   *metrics.CounterVec
}

func newMeters() *meters {
	gauge := func(name, help string) *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	counter := func(name, help string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA}, []string{"result"})
	}
	return &meters{
		lastSuccess: gauge("kubelith_snapshot_last_success_timestamp_seconds",
			"When the newest snapshot of this server that is in its directory was saved and verified, as a Unix time; 0 without one."),
		lastBytes: gauge("kubelith_snapshot_bytes", "Size of that snapshot."),
		lastUpload: gauge("kubelith_snapshot_last_upload_timestamp_seconds",
			"When the newest snapshot that is also in the store was saved, as a Unix time; 0 without one."),
		results: counter("kubelith_snapshots_total", "Scheduled snapshots since the start, by result: saved or failed."),
		uploads: counter("kubelith_snapshot_uploads_total",
			"Copies to the store since the start, by result: uploaded, or failed, which is tried again."),
	}
}

// register adds them to /metrics; when the component restarts, they are there.
func (m *meters) register() {
	for _, c := range []metrics.Registerable{m.lastSuccess, m.lastBytes, m.lastUpload, m.results, m.uploads} {
		_ = legacyregistry.Register(c)
	}
}

// newest is called with the newest snapshot; the zero File if there is none.
func (m *meters) newest(f File) {
	if m == nil {
		return
	}
	at := 0.0
	if !f.Created.IsZero() {
		at = float64(f.Created.Unix())
	}
	m.lastSuccess.Set(at)
	m.lastBytes.Set(float64(f.Bytes))
}

// newestCopy is called with the newest snapshot that is in the store.
func (m *meters) newestCopy(f File) {
	if m != nil {
		m.lastUpload.Set(float64(f.Created.Unix()))
	}
}

func (m *meters) saved()       { m.inc("saved", false) }
func (m *meters) notSaved()    { m.inc("failed", false) }
func (m *meters) uploaded()    { m.inc("uploaded", true) }
func (m *meters) notUploaded() { m.inc("failed", true) }

func (m *meters) inc(result string, upload bool) {
	switch {
	case m == nil:
	case upload:
		m.uploads.WithLabelValues(result).Inc()
	default:
		m.results.WithLabelValues(result).Inc()
	}
}
