package status

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// maxNews is how many Events wait for the API; older ones are dropped, as the condition has the current state.
const maxNews = 64

// Observer receives the Group's events, and keeps them for Server and for the metrics.
type Observer struct {
	mu         sync.Mutex
	components map[string]*component
	pending    []news
	changed    reconcile.Signal
	others     map[corev1.NodeConditionType]corev1.NodeCondition // that others report; without a status the Node has none
}

// component is the state of one component.
type component struct {
	up        bool
	restarts  int    // restarts so far, including one that is due
	failure   string // why it is down, while it is down
	down      bool   // it has failed and is not ready again
	abandoned int
}

// news is an Event about the Node.
type news struct{ kind, reason, text string }

var _ prometheus.Collector = (*Observer)(nil)

// NewObserver returns an Observer without events.
func NewObserver() *Observer {
	return &Observer{components: map[string]*component{}, changed: reconcile.NewSignal(), others: map[corev1.NodeConditionType]corev1.NodeCondition{}}
}

// Observe takes an event of the Group. It does not block.
func (o *Observer) Observe(e lifecycle.Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.components[e.Component]
	if c == nil {
		c = &component{}
		o.components[e.Component] = c
	}
	c.abandoned = e.Abandoned
	if e.State != lifecycle.Returned {
		c.up = e.State == lifecycle.Ready
	}
	switch e.State {
	case lifecycle.BackingOff:
		c.restarts++
		c.down, c.failure = true, firstLine(e.Err)
		o.notify(news{corev1.EventTypeWarning, ComponentFailed, fmt.Sprintf("%s: %s: restarting in %s", e.Component, c.failure, e.Next)})
	case lifecycle.Ending:
		c.down, c.failure = true, firstLine(e.Err)
		o.notify()
	case lifecycle.Ready:
		if c.down {
			c.down, c.failure = false, ""
			o.notify(news{corev1.EventTypeNormal, ComponentRestarted, fmt.Sprintf("%s: ready again, restarted %d times so far", e.Component, c.restarts)})
		}
	case lifecycle.Returned:
		o.notify()
	}
}

// Policies reports whether network policies are enforced on this node, as a condition of the Node; an empty status
// removes it.
func (o *Observer) Policies(status corev1.ConditionStatus, reason, message string) {
	o.report(names.PolicyCondition, status, reason, message)
}

// EtcdSpace reports whether the database of this server's etcd is nearly full, as a condition of the Node.
func (o *Observer) EtcdSpace(status corev1.ConditionStatus, reason, message string) {
	o.report(names.EtcdSpaceCondition, status, reason, message)
}

func (o *Observer) report(t corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := corev1.NodeCondition{Type: t, Status: status, Reason: reason, Message: message}
	if o.others[t] != now {
		o.others[t] = now
		o.notify()
	}
}

// conditions returns those that the Node should have, without times.
func (o *Observer) conditions() []corev1.NodeCondition {
	o.mu.Lock()
	defer o.mu.Unlock()
	wanted := []corev1.NodeCondition{o.condition()}
	for _, t := range slices.Sorted(maps.Keys(o.others)) {
		if c := o.others[t]; c.Status != "" {
			wanted = append(wanted, c)
		}
	}
	return wanted
}

// reported returns true for the types that Policies and EtcdSpace report.
func reported(t corev1.NodeConditionType) bool {
	return t == names.PolicyCondition || t == names.EtcdSpaceCondition
}

// tell adds an Event.
func (o *Observer) tell(n news) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.notify(n)
}

// notify adds Events; the caller holds mu.
func (o *Observer) notify(n ...news) {
	o.pending = append(o.pending, n...)
	o.pending = o.pending[max(0, len(o.pending)-maxNews):]
	o.changed.Send()
}

// take returns the pending Events.
func (o *Observer) take() []news {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.pending
	o.pending = nil
	return out
}

// condition returns the condition about the components; the caller holds mu.
func (o *Observer) condition() corev1.NodeCondition {
	var down, abandoned []string
	for _, name := range slices.Sorted(maps.Keys(o.components)) {
		c := o.components[name]
		if c.down {
			down = append(down, name+": "+c.failure)
		}
		if c.abandoned > 0 {
			abandoned = append(abandoned, fmt.Sprintf("%s (%d)", name, c.abandoned))
		}
	}
	out := corev1.NodeCondition{Type: Condition, Status: corev1.ConditionTrue, Reason: ComponentsReady,
		Message: "every component of kubelith is running"}
	switch {
	case len(down) > 0:
		out.Status, out.Reason, out.Message = corev1.ConditionFalse, ComponentFailed, strings.Join(down, "; ")
	case len(abandoned) > 0:
		out.Reason = ComponentAbandoned
		out.Message = "every component is running, but earlier runs have not stopped and keep their memory: " +
			"restart kubelith at your convenience: " + strings.Join(abandoned, ", ")
	}
	return out
}

// firstLine returns the reason without what may follow it in the error of a panic, such as a stack.
func firstLine(err error) string {
	if err == nil {
		return ""
	}
	text, _, _ := strings.Cut(strings.TrimSpace(err.Error()), "\n")
	return text
}

// The metrics; CounterVec and GaugeVec would need each component's name beforehand.
func descriptions() (up, restarts, abandoned *prometheus.Desc) {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("kubelith_component_"+name, help, []string{"component"}, nil)
	}
	return desc("up", "1 when the component is ready, else 0."),
		desc("restarts_total", "Restarts of the component in this process because it failed, panicked or hung."),
		desc("abandoned_runs", "Earlier runs of the component that were abandoned because they did not return when stopped.")
}

// Describe implements prometheus.Collector.
func (o *Observer) Describe(out chan<- *prometheus.Desc) {
	up, restarts, abandoned := descriptions()
	out <- up
	out <- restarts
	out <- abandoned
}

// Collect implements prometheus.Collector.
func (o *Observer) Collect(out chan<- prometheus.Metric) {
	up, restarts, abandoned := descriptions()
	o.mu.Lock()
	defer o.mu.Unlock()
	for name, c := range o.components {
		value := 0.0
		if c.up {
			value = 1
		}
		out <- prometheus.MustNewConstMetric(up, prometheus.GaugeValue, value, name)
		out <- prometheus.MustNewConstMetric(restarts, prometheus.CounterValue, float64(c.restarts), name)
		out <- prometheus.MustNewConstMetric(abandoned, prometheus.GaugeValue, float64(c.abandoned), name)
	}
}
