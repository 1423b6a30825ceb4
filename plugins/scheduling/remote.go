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

// removed stands for the generation of a plugin that the operator has removed.
const removed = math.MaxUint64

// defaultTimeout of a call, when neither the operator nor the plugin says one.
const defaultTimeout = 100 * time.Millisecond

// remote is a plugin's process as all profiles share it.
type remote struct {
	name    string
	plugin  atomic.Pointer[plugins.Plugin] // to nil: the operator has removed it
	pods    *podCache
	figures *figures
	breaker breaker
	voice   voice

	mu     sync.Mutex // held during the calls that carry an update: they must arrive in their order
	mirror mirror
}

func newRemote(p plugins.Plugin, pods *podCache, f *figures, log logrus.FieldLogger) *remote {
	r := &remote{name: p.Name(), pods: pods, figures: f, voice: voice{log: log}}
	r.use(p)
	return r
}

// use makes p the plugin to call; nil: none.
func (r *remote) use(p plugins.Plugin) { r.plugin.Store(&p) }

// answering is the generation of the process that answers now. Without a plugin nobody does, which is an answer of its own.
func (r *remote) answering() uint64 {
	if p := *r.plugin.Load(); p != nil {
		return p.Generation()
	}
	return removed
}

// description of the plugin; nil when no process has ever said one, or there is no plugin any more.
func (r *remote) description() *pluginv1.SchedulingDescription {
	p := *r.plugin.Load()
	if p == nil {
		return nil
	}
	return p.Description().GetScheduling()
}

// weight of the plugin's scores among upstream's.
func (r *remote) weight() int32 { return max(1, r.description().GetWeight()) }

// ignored tells whether pods are scheduled without a plugin that does not answer.
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

// absent is the error for a plugin that has never said what it does: whether it filters nobody knows. Removed ones are none.
func (r *remote) absent() error {
	p := *r.plugin.Load()
	if p == nil || r.ignored() {
		return nil
	}
	return &plugins.NotRunningError{Plugin: r.name, Reason: "it has not been ready since the start"}
}

// filter asks about all nodes. Without verdicts and error the plugin does not filter.
func (r *remote) filter(ctx context.Context, pod *corev1.Pod, nodes []fwk.NodeInfo) (*verdicts, error) {
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
	var v *verdicts
	err = r.update(ctx, "Filter", d, func() delta { return r.mirror.all(nodes) },
		func(ctx context.Context, c schedulingv1.SchedulingClient, s delta) error {
			answer, err := c.Filter(ctx, &schedulingv1.FilterRequest{Update: s.update, Pod: message, PodName: asUTF8(pod.Name), PodUid: asUTF8(string(pod.UID)), Nodes: s.nodes})
			if err != nil {
				return err
			}
			v, err = r.mirror.verdicts(answer, d)
			return err
		})
	return v, err
}

// filterNode asks about one node as it would be.
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

// score asks about some nodes; known are all there are. Without scores and error the plugin does not score.
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
	err = r.update(ctx, "Score", d, func() delta { return r.mirror.some(nodes, all) },
		func(ctx context.Context, c schedulingv1.SchedulingClient, s delta) error {
			answer, err := c.Score(ctx, &schedulingv1.ScoreRequest{Update: s.update, Pod: message, PodName: asUTF8(pod.Name), PodUid: asUTF8(string(pod.UID)), Nodes: s.nodes})
			if err != nil {
				return err
			}
			out, err = r.mirror.scores(answer, s.nodes)
			return err
		})
	return out, err
}

// update runs f with what the process has not been told yet. One that cannot follow is told everything, in the same deadline.
func (r *remote) update(ctx context.Context, method string, d *pluginv1.SchedulingDescription, next func() delta,
	f func(context.Context, schedulingv1.SchedulingClient, delta) error) error {
	return r.call(ctx, method, d, func(ctx context.Context, i plugins.Instance) error {
		client := schedulingv1.NewSchedulingClient(i.Conn)
		r.mirror.serve(i.Generation, fields(d))
		send := func() error {
			s := next()
			r.figures.sent(r.name, proto.Size(s.update), len(s.update.GetChanged()))
			return f(ctx, client, s)
		}
		err := send()
		if status.Code(err) == codes.FailedPrecondition {
			r.mirror.begin()
			err = send()
		}
		return err
	})
}

// call runs f within the plugin's deadline, unless it has just missed some in a row.
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
	if ctx.Err() == nil { // else upstream has ended the cycle, which says nothing of the plugin
		r.breaker.note(err, time.Now())
	}
	return err
}

// complain tells the operator.
func (r *remote) complain(what string, err error) {
	then := "pods wait until it does"
	if r.ignored() {
		then = "pods are scheduled without it"
	}
	r.voice.say("The plugin does not "+what+": "+text(err)+"; "+then+".", time.Now())
}
