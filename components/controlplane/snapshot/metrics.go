package snapshot

import (
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

var (
	lastSuccess = metrics.NewGauge(&metrics.GaugeOpts{Name: "kubelith_snapshot_last_success_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When the last snapshot was saved and verified, as a Unix time; 0 without one."})
	lastBytes = metrics.NewGauge(&metrics.GaugeOpts{Name: "kubelith_snapshot_bytes", StabilityLevel: metrics.ALPHA,
		Help: "Size of the last snapshot."})
	results = metrics.NewCounterVec(&metrics.CounterOpts{Name: "kubelith_snapshots_total", StabilityLevel: metrics.ALPHA,
		Help: "Scheduled snapshots since the start, by result: saved or failed."}, []string{"result"})
	saved  = counter("saved")
	failed = counter("failed")
)

func init() { legacyregistry.MustRegister(lastSuccess, lastBytes, results) }

// counter counts one result. Upstream's counters do nothing before they are registered.
type counter string

// Inc counts.
func (c counter) Inc() { results.WithLabelValues(string(c)).Inc() }
