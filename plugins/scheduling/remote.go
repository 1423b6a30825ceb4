package scheduling

import (
	"context"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// removed is the generation of a plugin that the operator has removed.
const removed = math.MaxUint64

// defaultTimeout of a call, if neither the operator nor the plugin sets one.
const defaultTimeout = 100 * time.Millisecond

// remote is a plugin's process. All profiles share it.
type remote struct {
	name    string
	plugin  atomic.Pointer[plugins.Plugin] // points to nil: the operator has removed it
	pods    *podCache
	metrics *updateMetrics
	breaker breaker
	errors  errorLogger

	mu    sync.Mutex // held during calls with an update, which must arrive in order
	cache snapshotCache
}

func newRemote(p plugins.Plugin, pods *podCache, m *updateMetrics, log logrus.FieldLogger) *remote {
	r := &remote{name: p.Name(), pods: pods, metrics: m, errors: errorLogger{logger: log}}
	r.use(p)
	return r
}

// use sets the plugin to call; nil: none.
func (r *remote) use(p plugins.Plugin) { r.plugin.Store(&p) }

// answering returns the generation of the process that serves now; 0: none serves; removed: the plugin was removed.
func (r *remote) answering() uint64 {
	if p := *r.plugin.Load(); p != nil {
		return p.Generation()
	}
	return removed
}

// description returns the plugin's description; nil if it has never run or was removed.
func (r *remote) description() *pluginv1.SchedulingDescription {
	p := *r.plugin.Load()
	if p == nil {
		return nil
	}
	return p.Description().GetScheduling()
}

// weight returns the default weight of the plugin's scores.
func (r *remote) weight() int32 { return max(1, r.description().GetWeight()) }

// ignored reports whether pods are scheduled without the plugin if it does not answer.
func (r *remote) ignored() bool {
	p := *r.plugin.Load()
	if p == nil {
		return true
	}
	switch p.Settings().FailurePolicy {
	case "Fail":
		return false
	case "Ignore":
		return true
	}
	return r.description().GetFailurePolicy() != pluginv1.FailurePolicy_FAILURE_POLICY_FAIL
}

// absent returns the error for a plugin without a description, which may be a filter. It is nil for a removed plugin.
func (r *remote) absent() error {
	p := *r.plugin.Load()
	if p == nil || r.ignored() {
		return nil
	}
	return &plugins.NotRunningError{Plugin: r.name, Reason: "it has not been ready since the start"}
}

// filter filters all nodes. It returns nil results if the plugin does not filter.
func (r *remote) filter(ctx context.Context, pod *corev1.Pod, nodes []fwk.NodeInfo) (*filterResults, error) {
	d := r.description()
	if d == nil {
		return nil, r.absent()
	}
	if !d.GetFilter() {
		return nil, nil
	}
	message, err := r.pods.message(pod, d.GetFullPod())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var v *filterResults
	err = r.update(ctx, "Filter", d, func() delta { return r.cache.all(nodes) },
		func(ctx context.Context, c schedulingv1.SchedulingClient, s delta) error {
			answer, err := c.Filter(ctx, &schedulingv1.FilterRequest{
				Update: s.update, Pod: message, PodName: asUTF8(pod.Name), PodUid: asUTF8(string(pod.UID)), Nodes: s.nodes,
			})
			if err != nil {
				return err
			}
			v, err = r.cache.filterResults(answer, d)
			return err
		})
	return v, err
}

// filterNode filters one node, which may be hypothetical.
func (r *remote) filterNode(ctx context.Context, pod *corev1.Pod, info fwk.NodeInfo) (reason string, err error) {
	d := r.description()
	if d == nil {
		return "", r.absent()
	}
	message, err := r.pods.message(pod, d.GetFullPod())
	if err != nil {
		return "", err
	}
	request := &schedulingv1.FilterNodeRequest{Node: nodeMessage(info, fields(d)), Pod: message, PodName: asUTF8(pod.Name), PodUid: asUTF8(string(pod.UID))}
	err = r.call(ctx, "FilterNode", d, func(ctx context.Context, i plugins.Instance) error {
		answer, err := schedulingv1.NewSchedulingClient(i.Conn).FilterNode(ctx, request)
		reason = answer.GetReason()
		return err
	})
	return reason, err
}

// score scores some nodes; known returns all nodes of the snapshot. It returns nil scores if the plugin does not score.
func (r *remote) score(ctx context.Context, pod *corev1.Pod, nodes []fwk.NodeInfo, known func() ([]fwk.NodeInfo, error)) (*scores, error) {
	d := r.description()
	if d == nil {
		return nil, r.absent()
	}
	if !d.GetScore() {
		return nil, nil
	}
	message, err := r.pods.message(pod, d.GetFullPod())
	if err != nil {
		return nil, err
	}
	all, err := known()
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var out *scores
	err = r.update(ctx, "Score", d, func() delta { return r.cache.some(nodes, all) },
		func(ctx context.Context, c schedulingv1.SchedulingClient, s delta) error {
			answer, err := c.Score(ctx, &schedulingv1.ScoreRequest{
				Update: s.update, Pod: message, PodName: asUTF8(pod.Name), PodUid: asUTF8(string(pod.UID)), Nodes: s.nodes,
			})
			if err != nil {
				return err
			}
			out, err = r.cache.scores(answer, s.nodes)
			return err
		})
	return out, err
}

// update runs f with the changes that the process has not been sent yet. If the process has lost track, f runs again
// with all nodes, within the same timeout.
func (r *remote) update(ctx context.Context, method string, d *pluginv1.SchedulingDescription, next func() delta,
	f func(context.Context, schedulingv1.SchedulingClient, delta) error) error {
	return r.call(ctx, method, d, func(ctx context.Context, i plugins.Instance) error {
		client := schedulingv1.NewSchedulingClient(i.Conn)
		r.cache.serve(i.Generation, fields(d))
		send := func() error {
			s := next()
			r.metrics.sent(r.name, proto.Size(s.update), len(s.update.GetChanged()))
			return f(ctx, client, s)
		}
		err := send()
		if status.Code(err) == codes.FailedPrecondition {
			r.cache.begin()
			err = send()
		}
		return err
	})
}

// call runs f within the plugin's timeout, unless the breaker is open.
func (r *remote) call(ctx context.Context, method string, d *pluginv1.SchedulingDescription, f func(context.Context, plugins.Instance) error) error {
	p := *r.plugin.Load()
	if p == nil {
		return &plugins.NotRunningError{Plugin: r.name, Reason: "it has been removed"}
	}
	if err := r.breaker.allow(time.Now()); err != nil {
		return err
	}
	timeout := d.GetTimeout().AsDuration()
	if given := p.Settings().Timeout; given > 0 {
		timeout = given
	}
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := p.Call(within, method, f)
	if ctx.Err() == nil { // else upstream ended the cycle, which says nothing about the plugin
		r.breaker.note(err, time.Now())
	}
	return err
}

// complain logs a failure for the operator.
func (r *remote) complain(what string, err error) {
	then := "pods wait until it does"
	if r.ignored() {
		then = "pods are scheduled without it"
	}
	r.errors.log("The plugin does not "+what+": "+text(err)+"; "+then+".", time.Now())
}
