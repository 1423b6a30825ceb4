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
	lastUpload = metrics.NewGauge(&metrics.GaugeOpts{Name: "kubelith_snapshot_last_upload_timestamp_seconds", StabilityLevel: metrics.ALPHA,
		Help: "When the newest snapshot that is also in the store was saved, as a Unix time; 0 without one."})
	uploads = metrics.NewCounterVec(&metrics.CounterOpts{Name: "kubelith_snapshot_uploads_total", StabilityLevel: metrics.ALPHA,
		Help: "Copies to the store since the start, by result: uploaded, or failed, which is tried again."}, []string{"result"})
	saveCounts   = counts{results}
	uploadCounts = counts{uploads}
)

// The results.
const (
	resultSaved    = "saved"
	resultUploaded = "uploaded"
	resultFailed   = "failed"
)

func init() { legacyregistry.MustRegister(lastSuccess, lastBytes, results, lastUpload, uploads) }

// counts counts results. Upstream's counters do nothing before they are registered.
type counts struct{ of *metrics.CounterVec }

// Inc counts one.
func (c counts) Inc(result string) { c.of.WithLabelValues(result).Inc() }
