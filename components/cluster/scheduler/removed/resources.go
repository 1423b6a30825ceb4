package removed

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	inner "k8s.io/kubernetes/pkg/scheduler/framework/plugins"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
)

// resources scores as NodeResourcesFit does, with its own strategy: a profile can have that plugin only once.
type resources struct {
	name string
	fit  interface {
		fwk.PreScorePlugin
		fwk.ScorePlugin
	}
}

var (
	_ fwk.PreScorePlugin = (*resources)(nil)
	_ fwk.ScorePlugin    = (*resources)(nil)
)

// newResources has the arguments of NodeResourcesFit, of which it uses the scoring strategy.
func newResources(ctx context.Context, name string, strategy configv1.ScoringStrategyType, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	var args configv1.NodeResourcesFitArgs
	if err := decode(name, given, &args); err != nil {
		return nil, err
	}
	if args.ScoringStrategy == nil {
		args.ScoringStrategy = &configv1.ScoringStrategy{}
	}
	s := &config.ScoringStrategy{Type: config.ScoringStrategyType(strategy)}
	for _, r := range args.ScoringStrategy.Resources {
		s.Resources = append(s.Resources, config.ResourceSpec(r))
	}
	if s.Resources == nil {
		s.Resources = []config.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}}
	}
	if ratio := args.ScoringStrategy.RequestedToCapacityRatio; ratio != nil {
		s.RequestedToCapacityRatio = &config.RequestedToCapacityRatioParam{}
		for _, point := range ratio.Shape {
			s.RequestedToCapacityRatio.Shape = append(s.RequestedToCapacityRatio.Shape, config.UtilizationShapePoint(point))
		}
	}
	plugin, err := inner.NewInTreeRegistry()[names.NodeResourcesFit](ctx, &config.NodeResourcesFitArgs{ScoringStrategy: s}, handle)
	if err != nil {
		return nil, fmt.Errorf("plugin %s: %w", name, err)
	}
	p := &resources{name: name}
	p.fit = plugin.(interface {
		fwk.PreScorePlugin
		fwk.ScorePlugin
	})
	return p, nil
}

// own is the state of the inner plugin, apart from that of NodeResourcesFit.
type own struct{ state fwk.CycleState }

// Clone implements fwk.StateData.
func (o own) Clone() fwk.StateData { return own{o.state.Clone()} }

func (p *resources) key() fwk.StateKey { return fwk.StateKey("kubelith.io/" + p.name) }

// Name implements fwk.Plugin.
func (p *resources) Name() string { return p.name }

// PreScore implements fwk.PreScorePlugin.
func (p *resources) PreScore(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, nodes []fwk.NodeInfo) *fwk.Status {
	o := own{framework.NewCycleState()}
	state.Write(p.key(), o)
	return p.fit.PreScore(ctx, o.state, pod, nodes)
}

// Score implements fwk.ScorePlugin.
func (p *resources) Score(ctx context.Context, state fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	data, err := state.Read(p.key())
	if err != nil {
		return 0, fwk.AsStatus(fmt.Errorf("plugin %s: enable it at preScore as well: %w", p.name, err))
	}
	return p.fit.Score(ctx, data.(own).state, pod, info)
}

// ScoreExtensions implements fwk.ScorePlugin.
func (*resources) ScoreExtensions() fwk.ScoreExtensions { return nil }
