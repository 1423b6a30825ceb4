package pluginadmin

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
)

// maxChanges is how many changes wait for the API. Older ones are dropped: conditions show the current state.
const maxChanges = 256

// Observer counts and queues what the host reports, for Server.
type Observer struct {
	calls     *prometheus.CounterVec
	durations *prometheus.HistogramVec
	changes   *prometheus.CounterVec

	mu      sync.Mutex
	pending []change
	counts  map[string]int   // of changes, by plugin
	signal  reconcile.Signal // something is pending
}

// change is one call of Changed.
type change struct {
	state  host.State
	reason string
}

var _ host.Observer = (*Observer)(nil)

// NewObserver returns an Observer for one host.
func NewObserver() *Observer {
	return &Observer{
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelith_plugin_calls_total", Help: "Calls of a plugin by method and gRPC code.",
		}, []string{"plugin", "kind", "method", "code"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "kubelith_plugin_call_duration_seconds", Help: "Duration of calls of a plugin.",
			Buckets: []float64{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30},
		}, []string{"plugin", "kind", "method"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kubelith_plugin_changes_total", Help: "What happened to a plugin, by the reasons of its Events.",
		}, []string{"plugin", "kind", "reason"}),
		counts: map[string]int{},
		signal: reconcile.NewSignal(),
	}
}

// Called implements host.Observer.
func (o *Observer) Called(plugin string, kind plugins.Kind, method string, code codes.Code, d time.Duration) {
	o.calls.WithLabelValues(plugin, string(kind), method, code.String()).Inc()
	o.durations.WithLabelValues(plugin, string(kind), method).Observe(d.Seconds())
}

// Changed implements host.Observer.
func (o *Observer) Changed(s host.State, reason string) {
	o.changes.WithLabelValues(s.Name, string(s.Kind), reason).Inc()
	o.mu.Lock()
	if len(o.pending) == maxChanges {
		o.pending = o.pending[1:]
	}
	o.pending = append(o.pending, change{s, reason})
	o.counts[s.Name]++
	o.mu.Unlock()
	o.signal.Send()
}

// take returns the pending changes and removes them.
func (o *Observer) take() []change {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.pending
	o.pending = nil
	return out
}

// changesOf returns the number of changes of a plugin so far.
func (o *Observer) changesOf(plugin string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.counts[plugin]
}
