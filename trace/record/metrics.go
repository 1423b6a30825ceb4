package record

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a store.
type Metrics struct {
	store  *Store
	stages *prometheus.HistogramVec

	mu    sync.Mutex
	known map[Stage]prometheus.Observer
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns the metrics of a store, from now on. It is called before records are added.
func NewMetrics(s *Store) *Metrics {
	m := &Metrics{store: s, known: map[Stage]prometheus.Observer{}, stages: prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "kubelith_stage_duration_seconds", Help: "How long a stage took between a request and running containers, as kubelith trace shows it.",
		Buckets: prometheus.ExponentialBuckets(0.001, 2, 18), // to 131 s
	}, []string{"stage"})}
	s.Observe(m.observe)
	return m
}

// observe takes a record that is added. Moments have no duration, and one that was counted before is no other one.
func (m *Metrics) observe(r *Record) {
	if r.Duration <= 0 || r.Count > 1 {
		return
	}
	m.mu.Lock()
	o := m.known[r.Stage]
	if o == nil {
		o = m.stages.WithLabelValues(string(r.Stage))
		m.known[r.Stage] = o
	}
	m.mu.Unlock()
	o.Observe(r.Duration.Seconds())
}

func descriptions() (objects, records, bytes, limit, dropped *prometheus.Desc) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubelith_trace_"+name, help, nil, nil)
	}
	return desc("objects", "Objects in the flight recorder."),
		desc("records", "Records in the flight recorder."),
		desc("bytes", "Memory of the flight recorder, as it estimates it."),
		desc("limit_bytes", "Memory that the flight recorder may take."),
		desc("dropped_records_total", "Records that the flight recorder forgot for their age or to make room.")
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(out chan<- *prometheus.Desc) {
	m.stages.Describe(out)
	objects, records, bytes, limit, dropped := descriptions()
	for _, d := range []*prometheus.Desc{objects, records, bytes, limit, dropped} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.stages.Collect(out)
	u := m.store.Usage()
	objects, records, bytes, limit, dropped := descriptions()
	out <- prometheus.MustNewConstMetric(objects, prometheus.GaugeValue, float64(u.Objects))
	out <- prometheus.MustNewConstMetric(records, prometheus.GaugeValue, float64(u.Records))
	out <- prometheus.MustNewConstMetric(bytes, prometheus.GaugeValue, float64(u.Bytes))
	out <- prometheus.MustNewConstMetric(limit, prometheus.GaugeValue, float64(u.Limit))
	out <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(u.Dropped))
}
