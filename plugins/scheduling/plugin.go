package scheduling

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// plugin is a plugin of the scheduler framework in one profile. It implements every extension point that a plugin may
// need, because the framework asks at its start, when the process may not have described itself yet. Extension points
// that it does not need return Skip.
type plugin struct {
	*remote
	handle   fwk.Handle
	profile  *profile
	waiting  waiting
	filtered fwk.StateKey
	scored   fwk.StateKey
}

var (
	_ fwk.PreFilterPlugin   = (*plugin)(nil)
	_ fwk.FilterPlugin      = (*plugin)(nil)
	_ fwk.PreScorePlugin    = (*plugin)(nil)
	_ fwk.ScorePlugin       = (*plugin)(nil)
	_ fwk.SignPlugin        = (*plugin)(nil)
	_ fwk.EnqueueExtensions = (*plugin)(nil)
)

func newPlugin(r *remote, handle fwk.Handle, t *profile) *plugin {
	p := &plugin{remote: r, handle: handle, profile: t,
		filtered: fwk.StateKey("kubelith/filter/" + r.name), scored: fwk.StateKey("kubelith/score/" + r.name),
		waiting: waiting{known: handle.SharedInformerFactory().Core().V1().Pods().Lister()}}
	t.join(p)
	return p
}

// Name implements fwk.Plugin.
func (p *plugin) Name() string { return p.name }

// PreFilter implements fwk.PreFilterPlugin: one call for all nodes. Its result names no nodes, as upstream would not
// try preemption on the others.
func (p *plugin) PreFilter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	v, err := ask(p, state, "kubelith/filter", pod, nodes, func(m *plugin) (*filterResults, error) { return m.filterAll(ctx, pod, nodes) })
	switch {
	case err != nil:
		return nil, p.failed(ctx, pod, "filter", err)
	case v == nil:
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(p.filtered, v)
	return nil, nil
}

// filterAll filters all nodes. The pod is in waiting during the call: another process may start to serve before the
// scheduler has queued the pod again.
func (p *plugin) filterAll(ctx context.Context, pod *corev1.Pod, nodes []fwk.NodeInfo) (*filterResults, error) {
	p.waiting.add(pod)
	v, err := p.filter(ctx, pod, nodes)
	if (err == nil && !v.rejectsAny()) || (err != nil && p.ignored()) {
		p.waiting.remove(pod)
	}
	return v, err
}

// PreFilterExtensions implements fwk.PreFilterPlugin. There are none, as Filter compares the node with that of
// PreFilter.
func (p *plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter implements fwk.FilterPlugin: the result of PreFilter, or a call if the node has changed since.
func (p *plugin) Filter(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, node fwk.NodeInfo) *fwk.Status {
	data, err := state.Read(p.filtered)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("filter results of plugin %s: %w", p.name, err))
	}
	v := data.(*filterResults)
	reason, known := v.of(node)
	if !known {
		p.waiting.add(pod)
		if reason, err = p.filterNode(ctx, pod, node); err != nil {
			if status := p.failed(ctx, pod, "filter", err); !status.IsSkip() {
				return status
			}
			return nil
		}
	}
	switch {
	case reason == "":
		return nil
	case v.unresolvable:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
	}
	return fwk.NewStatus(fwk.Unschedulable, reason)
}

// PreScore implements fwk.PreScorePlugin: one call for the nodes that passed.
func (p *plugin) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	s, err := ask(p, state, "kubelith/score", pod, nodes, func(m *plugin) (*scores, error) { return m.score(ctx, pod, nodes, m.known) })
	switch {
	case err != nil:
		return p.failed(ctx, pod, "score", err)
	case s == nil:
		return fwk.NewStatus(fwk.Skip)
	}
	state.Write(p.scored, s)
	return nil
}

// tryAgain activates the pods that wait for the plugin. The queue ignores those that it does not have.
func (p *plugin) tryAgain() {
	if pods := p.waiting.take(); len(pods) > 0 {
		p.handle.Activate(klog.Background(), pods)
	}
}

// known returns all nodes of the scheduler's snapshot.
func (p *plugin) known() ([]fwk.NodeInfo, error) {
	return p.handle.SnapshotSharedLister().NodeInfos().List()
}

// Score implements fwk.ScorePlugin.
func (p *plugin) Score(_ context.Context, state fwk.CycleState, _ *corev1.Pod, node fwk.NodeInfo) (int64, *fwk.Status) {
	data, err := state.Read(p.scored)
	if err == nil {
		if score, ok := data.(*scores).of(node); ok {
			return score, nil
		}
		err = fmt.Errorf("node %s was not scored", node.Node().Name)
	}
	return 0, fwk.AsStatus(fmt.Errorf("scores of plugin %s: %w", p.name, err))
}

// ScoreExtensions implements fwk.ScorePlugin. There are none: scores are 0 to 100 already.
func (p *plugin) ScoreExtensions() fwk.ScoreExtensions { return nil }

// SignPod implements fwk.SignPlugin. Pods with equal messages get equal results, so upstream may reuse the results of
// one for the next. Without a signature, upstream would not batch any pod of the profile.
func (p *plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	d := p.description()
	switch {
	case d == nil:
		return nil, nil
	case d.GetFullPod():
		return nil, fwk.NewStatus(fwk.Unschedulable, "plugin "+p.name+" reads the whole pod")
	}
	signature, err := p.pods.signature(pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	return []fwk.SignFragment{{Key: "kubelith.io/pod", Value: signature}}, nil
}

// EventsToRegister implements fwk.EnqueueExtensions: events after which a pod may pass that the plugin has rejected on
// all nodes, in addition to a new process of the plugin (tryAgain). Pods on nodes matter only to plugins that use them.
func (p *plugin) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	event := func(resource fwk.EventResource, action fwk.ActionType) fwk.ClusterEvent {
		return fwk.ClusterEvent{Resource: resource, ActionType: action}
	}
	return []fwk.ClusterEventWithHint{
		{Event: event(fwk.Node, fwk.Add|fwk.UpdateNodeAllocatable|fwk.UpdateNodeLabel|fwk.UpdateNodeTaint|fwk.UpdateNodeAnnotation)},
		{Event: event(fwk.AssignedPod, fwk.Add|fwk.Delete|fwk.UpdatePodLabel|fwk.UpdatePodScaleDown), QueueingHintFn: p.podOnNode},
		{Event: event(fwk.TargetPod, fwk.UpdatePodLabel|fwk.UpdatePodScaleDown)},
	}, nil
}

func (p *plugin) podOnNode(klog.Logger, *corev1.Pod, any, any) (fwk.QueueingHint, error) {
	if d := p.description(); d != nil && !d.GetFilterUsesPods() {
		return fwk.QueueSkip, nil
	}
	return fwk.Queue, nil
}

// failed returns the status of a pod after a failed call: Skip if the failure policy is Ignore, else an error, so that
// the pod is retried. If upstream ended the cycle, it is not the plugin's failure.
func (p *plugin) failed(ctx context.Context, pod *corev1.Pod, what string, err error) *fwk.Status {
	if ctx.Err() != nil {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, context.Cause(ctx).Error())
	}
	p.complain(what, err)
	if p.ignored() {
		return fwk.NewStatus(fwk.Skip)
	}
	p.waiting.add(pod)
	return fwk.AsStatus(fmt.Errorf("plugin %s: %s", p.name, text(err)))
}
