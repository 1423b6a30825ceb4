// Package workqueues keeps client-go's work queues from waking an idle process. Upstream starts a loop for each queue
// that sets workqueue_unfinished_work_seconds and workqueue_longest_running_processor_seconds twice a second, whether
// or not anybody reads them. Here, both are computed when they are read (ADR 066).
package workqueues

import (
	"runtime"
	"strings"
	"sync"
	"time"
	_ "unsafe" // for the name of client-go's variable

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // sets the provider that ours wraps
)

// upstream is the provider of metrics for queues that are made from now on. SetProvider takes only its first call,
// which is that of component-base.
//
//go:linkname upstream k8s.io/client-go/util/workqueue.globalMetricsProvider
var upstream workqueue.MetricsProvider

// Metrics registers what computes the two metrics.
type Metrics interface {
	Register(prometheus.Collector) error
}

// Install changes how all queues made from now on compute their two metrics, and registers these. It is called once,
// before the first component starts. Without upstream's provider it does nothing.
func Install(metrics Metrics) error {
	if _, installed := upstream.(*provider); installed || upstream == nil {
		return nil
	}
	p := &provider{MetricsProvider: upstream, queues: map[string]*queue{}}
	if err := metrics.Register(p); err != nil {
		return err
	}
	upstream = p
	return nil
}

// provider makes the metrics of queues: upstream's, but for those two.
type provider struct {
	workqueue.MetricsProvider

	mu     sync.Mutex
	queues map[string]*queue
}

// queue is what the queues of one name work on.
type queue struct {
	mu      sync.Mutex
	started []time.Time // of each item that a worker has, in the order of their starts
}

func (p *provider) named(name string) *queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queues[name]
	if q == nil {
		q = &queue{}
		p.queues[name] = q
	}
	return q
}

// NewDepthMetric returns a gauge that also notes the start of work: client-go calls its Dec when a worker gets an item,
// and at no other time.
//
// Source: k8s.io/client-go/util/workqueue/metrics.go, defaultQueueMetrics.get.
func (p *provider) NewDepthMetric(name string) workqueue.GaugeMetric {
	return depth{GaugeMetric: p.MetricsProvider.NewDepthMetric(name), queue: p.named(name)}
}

// NewWorkDurationMetric returns a histogram that also notes the end of work: client-go calls its Observe then, with how
// long it took.
//
// Source: k8s.io/client-go/util/workqueue/metrics.go, defaultQueueMetrics.done.
func (p *provider) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return duration{HistogramMetric: p.MetricsProvider.NewWorkDurationMetric(name), queue: p.named(name)}
}

// NewUnfinishedWorkSecondsMetric returns a gauge that ends the loop which sets it.
func (p *provider) NewUnfinishedWorkSecondsMetric(string) workqueue.SettableGaugeMetric {
	return loop{}
}

// NewLongestRunningProcessorSecondsMetric returns a gauge that ends the loop which sets it.
func (p *provider) NewLongestRunningProcessorSecondsMetric(string) workqueue.SettableGaugeMetric {
	return loop{}
}

type depth struct {
	workqueue.GaugeMetric
	queue *queue
}

func (d depth) Dec() {
	d.GaugeMetric.Dec()
	d.queue.start(time.Now())
}

type duration struct {
	workqueue.HistogramMetric
	queue *queue
}

func (d duration) Observe(seconds float64) {
	d.HistogramMetric.Observe(seconds)
	d.queue.end(time.Now().Add(-time.Duration(seconds * float64(time.Second))))
}

type loop struct{}

// Set ends the goroutine of client-go's loop, which has nothing else to do. The loop unlocks its queue and stops its
// ticker by deferred calls. Set does nothing when another function calls it.
func (loop) Set(float64) {
	callers := make([]uintptr, 8)
	frames := runtime.CallersFrames(callers[:runtime.Callers(2, callers)])
	for {
		frame, more := frames.Next()
		if strings.HasPrefix(frame.Function, "k8s.io/client-go/util/workqueue.") &&
			strings.HasSuffix(frame.Function, ".updateUnfinishedWorkLoop") {
			runtime.Goexit()
		}
		if !more {
			return
		}
	}
}

func (q *queue) start(now time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.started = append(q.started, now)
}

// end removes the item whose start is nearest to at, which differs from the noted one by the time between two readings
// of the clock.
func (q *queue) end(at time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	nearest := -1
	for i, s := range q.started {
		if nearest < 0 || s.Sub(at).Abs() < q.started[nearest].Sub(at).Abs() {
			nearest = i
		}
	}
	if nearest >= 0 {
		q.started = append(q.started[:nearest], q.started[nearest+1:]...)
	}
}

// working returns how long the workers of the queue have been working on what they have: all together, and the longest.
func (q *queue) working(now time.Time) (all, longest time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, s := range q.started {
		all += now.Sub(s)
		longest = max(longest, now.Sub(s))
	}
	return all, longest
}

// All metrics of one name must have one help, or the scrape fails: it is upstream's, for a queue that has upstream's
// provider.
//
// Source: k8s.io/component-base/metrics/prometheus/workqueue/metrics.go.
var (
	unfinished = prometheus.NewDesc("workqueue_unfinished_work_seconds",
		"[BETA] How many seconds of work has done that is in progress and hasn't been observed by work_duration. Large values "+
			"indicate stuck threads. One can deduce the number of stuck threads by observing the rate at which this increases.",
		[]string{"name"}, nil)
	longestRunning = prometheus.NewDesc("workqueue_longest_running_processor_seconds",
		"[BETA] How many seconds has the longest running processor for workqueue been running.", []string{"name"}, nil)
)

// Describe implements prometheus.Collector. It sends nothing, since upstream has registered the same two metrics and
// never sets them.
func (p *provider) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p *provider) Collect(metrics chan<- prometheus.Metric) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for name, q := range p.queues {
		all, longest := q.working(now)
		metrics <- prometheus.MustNewConstMetric(unfinished, prometheus.GaugeValue, all.Seconds(), name)
		metrics <- prometheus.MustNewConstMetric(longestRunning, prometheus.GaugeValue, longest.Seconds(), name)
	}
}
