package removed

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/helper"
)

// ServiceAffinityArgs are labels of nodes.
type ServiceAffinityArgs struct {
	// AffinityLabels have one value each for all pods of a Service.
	AffinityLabels []string `json:"affinityLabels,omitempty"`
	// AntiAffinityLabelsPreference are those over whose values the pods of a Service are spread.
	AntiAffinityLabelsPreference []string `json:"antiAffinityLabelsPreference,omitempty"`
}

// serviceAffinity keeps the pods of a Service together, or apart, by the labels of their nodes.
type serviceAffinity struct {
	args     ServiceAffinityArgs
	nodes    fwk.SharedLister
	services corelisters.ServiceLister
}

var (
	_ fwk.PreFilterPlugin   = (*serviceAffinity)(nil)
	_ fwk.FilterPlugin      = (*serviceAffinity)(nil)
	_ fwk.ScorePlugin       = (*serviceAffinity)(nil)
	_ fwk.EnqueueExtensions = (*serviceAffinity)(nil)
)

func newServiceAffinity(handle fwk.Handle) *serviceAffinity {
	return &serviceAffinity{nodes: handle.SnapshotSharedLister(), services: handle.SharedInformerFactory().Core().V1().Services().Lister()}
}

// Name implements fwk.Plugin.
func (*serviceAffinity) Name() string { return ServiceAffinity }

// like are the pods in a pod's namespace that have all of its labels. The first one decides.
type like struct {
	selector labels.Selector
	pods     []*corev1.Pod
	served   bool // the pod has a Service
}

const likeKey fwk.StateKey = "kubelith.io/" + ServiceAffinity

// Clone implements fwk.StateData.
func (l *like) Clone() fwk.StateData {
	return &like{selector: l.selector, pods: slices.Clone(l.pods), served: l.served}
}

// PreFilter implements fwk.PreFilterPlugin.
func (p *serviceAffinity) PreFilter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult, *fwk.Status) {
	if len(p.args.AffinityLabels) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	services, err := helper.GetPodServices(p.services, pod)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	nodes, err := p.nodes.NodeInfos().List()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	l := &like{selector: labels.SelectorFromSet(pod.Labels), served: len(services) > 0}
	for _, info := range nodes {
		for _, other := range info.GetPods() {
			if o := other.GetPod(); o.Namespace == pod.Namespace && l.selector.Matches(labels.Set(o.Labels)) {
				l.pods = append(l.pods, o)
			}
		}
	}
	state.Write(likeKey, l)
	return nil, nil
}

// PreFilterExtensions implements fwk.PreFilterPlugin.
func (p *serviceAffinity) PreFilterExtensions() fwk.PreFilterExtensions { return p }

// AddPod implements fwk.PreFilterExtensions.
func (*serviceAffinity) AddPod(_ context.Context, state fwk.CycleState, pod *corev1.Pod, added fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	l, status := read(state)
	if o := added.GetPod(); status == nil && o.Namespace == pod.Namespace && l.selector.Matches(labels.Set(o.Labels)) {
		l.pods = append(l.pods, o)
	}
	return status
}

// RemovePod implements fwk.PreFilterExtensions.
func (*serviceAffinity) RemovePod(_ context.Context, state fwk.CycleState, _ *corev1.Pod, gone fwk.PodInfo, _ fwk.NodeInfo) *fwk.Status {
	l, status := read(state)
	if status == nil {
		l.pods = slices.DeleteFunc(l.pods, func(o *corev1.Pod) bool { return o.UID == gone.GetPod().UID })
	}
	return status
}

func read(state fwk.CycleState) (*like, *fwk.Status) {
	data, err := state.Read(likeKey)
	if err != nil {
		return nil, fwk.AsStatus(fmt.Errorf("plugin %s: enable it at preFilter as well: %w", ServiceAffinity, err))
	}
	return data.(*like), nil
}

// Filter implements fwk.FilterPlugin. The wanted values are those of the pod's node selector and, where it has none,
// those of the node of another pod of the Service.
func (p *serviceAffinity) Filter(_ context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	l, status := read(state)
	if status != nil {
		return status
	}
	want := labels.Set{}
	maps.Copy(want, pod.Spec.NodeSelector)
	maps.DeleteFunc(want, func(key, _ string) bool { return !slices.Contains(p.args.AffinityLabels, key) })
	if l.served && len(l.pods) > 0 {
		first, err := p.nodes.NodeInfos().Get(l.pods[0].Spec.NodeName)
		if err != nil {
			return fwk.AsStatus(err)
		}
		for _, key := range p.args.AffinityLabels {
			value, ok := first.Node().Labels[key]
			if _, has := want[key]; ok && !has {
				want[key] = value
			}
		}
	}
	if !labels.SelectorFromSet(want).Matches(labels.Set(info.Node().Labels)) {
		return fwk.NewStatus(fwk.Unschedulable, "node(s) didn't match service affinity")
	}
	return nil
}

// Score implements fwk.ScorePlugin: how many pods of the Service the node has.
func (p *serviceAffinity) Score(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) (n int64, _ *fwk.Status) {
	services, err := helper.GetPodServices(p.services, pod)
	if err != nil || len(services) == 0 {
		return 0, fwk.AsStatus(err)
	}
	first := slices.MinFunc(services, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	selector := labels.SelectorFromSet(first.Spec.Selector)
	if selector.Empty() {
		return 0, nil
	}
	for _, other := range info.GetPods() {
		o := other.GetPod()
		if o.Namespace == pod.Namespace && o.DeletionTimestamp == nil && selector.Matches(labels.Set(o.Labels)) {
			n++
		}
	}
	return n, nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (p *serviceAffinity) ScoreExtensions() fwk.ScoreExtensions { return p }

// NormalizeScore implements fwk.ScoreExtensions: the fewer pods of the Service have a node with the same value, the
// higher the score. A node without a label gets nothing for it.
func (p *serviceAffinity) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	all := int64(0)
	on := make([]labels.Set, len(scores)) // the labels of each node
	for i, s := range scores {
		info, err := p.nodes.NodeInfos().Get(s.Name)
		if err != nil {
			return fwk.AsStatus(err)
		}
		all, on[i] = all+s.Score, info.Node().Labels
	}
	sums := make([]float64, len(scores))
	for _, key := range p.args.AntiAffinityLabelsPreference {
		pods := map[string]int64{} // by the value of the label
		for i, s := range scores {
			if on[i].Has(key) {
				pods[on[i].Get(key)] += s.Score
			}
		}
		for i := range scores {
			switch {
			case !on[i].Has(key):
			case all == 0:
				sums[i] += float64(fwk.MaxScore)
			default:
				sums[i] += float64(fwk.MaxScore) * float64(all-pods[on[i].Get(key)]) / float64(all)
			}
		}
	}
	for i := range scores {
		scores[i].Score = int64(sums[i] / float64(max(1, len(p.args.AntiAffinityLabelsPreference))))
	}
	return nil
}

// EventsToRegister implements fwk.EnqueueExtensions. Services are not among upstream's events: after a change of one, a
// pod is tried again when all are, --scheduler-arg=pod-max-in-unschedulable-pods-duration.
func (*serviceAffinity) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		{Event: fwk.ClusterEvent{Resource: fwk.Pod, ActionType: fwk.UpdatePodLabel | fwk.Delete}},
		{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}},
	}, nil
}
