package removed

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// NodeLabelArgs are the labels that nodes must have or not have, and those that are preferred.
type NodeLabelArgs struct {
	PresentLabels           []string `json:"presentLabels,omitempty"`
	AbsentLabels            []string `json:"absentLabels,omitempty"`
	PresentLabelsPreference []string `json:"presentLabelsPreference,omitempty"`
	AbsentLabelsPreference  []string `json:"absentLabelsPreference,omitempty"`
}

// nodeLabel filters and scores nodes by the presence of labels, whatever the pod.
type nodeLabel struct{ args NodeLabelArgs }

var (
	_ fwk.FilterPlugin      = (*nodeLabel)(nil)
	_ fwk.ScorePlugin       = (*nodeLabel)(nil)
	_ fwk.EnqueueExtensions = (*nodeLabel)(nil)
)

// Name implements fwk.Plugin.
func (*nodeLabel) Name() string { return NodeLabel }

// count returns how many of the labels are as wanted.
func count(node *corev1.Node, present, absent []string) (n int64) {
	for _, key := range present {
		if _, ok := node.Labels[key]; ok {
			n++
		}
	}
	for _, key := range absent {
		if _, ok := node.Labels[key]; !ok {
			n++
		}
	}
	return n
}

// Filter implements fwk.FilterPlugin.
func (p *nodeLabel) Filter(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	if count(info.Node(), p.args.PresentLabels, p.args.AbsentLabels) < int64(len(p.args.PresentLabels)+len(p.args.AbsentLabels)) {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "node(s) didn't have the requested labels")
	}
	return nil
}

// Score implements fwk.ScorePlugin: the share of the labels that are as preferred.
func (p *nodeLabel) Score(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	all := int64(len(p.args.PresentLabelsPreference) + len(p.args.AbsentLabelsPreference))
	if all == 0 {
		return 0, nil
	}
	return fwk.MaxScore * count(info.Node(), p.args.PresentLabelsPreference, p.args.AbsentLabelsPreference) / all, nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (*nodeLabel) ScoreExtensions() fwk.ScoreExtensions { return nil }

// EventsToRegister implements fwk.EnqueueExtensions.
func (*nodeLabel) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add | fwk.UpdateNodeLabel}}}, nil
}
