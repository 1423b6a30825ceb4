// Package removed has the scheduler's plugins that Kubernetes removed after 1.22 and that its other plugins do not
// replace. They have the names and arguments of the configuration kubescheduler.config.k8s.io/v1beta1, and take part
// only where a profile names them: policies do (package policy), and a file of --scheduler-arg=config may.
//
// Their rules are those of
// pkg/scheduler/framework/plugins/{nodelabel,serviceaffinity,nodepreferavoidpods,noderesources} of Kubernetes 1.22.
package removed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"sigs.k8s.io/yaml"
)

// Names of the plugins.
const (
	NodeLabel                   = "NodeLabel"
	NodePreferAvoidPods         = "NodePreferAvoidPods"
	NodeResourcesLeastAllocated = "NodeResourcesLeastAllocated"
	NodeResourcesMostAllocated  = "NodeResourcesMostAllocated"
	RequestedToCapacityRatio    = "RequestedToCapacityRatio"
	ServiceAffinity             = "ServiceAffinity"
)

// Registry has the plugins for a scheduler.
func Registry() frameworkruntime.Registry {
	all := frameworkruntime.Registry{
		NodeLabel: func(_ context.Context, given runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
			p := &nodeLabel{}
			return p, decode(NodeLabel, given, &p.args)
		},
		NodePreferAvoidPods: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return avoidPods{}, nil },
		ServiceAffinity: func(_ context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			p := newServiceAffinity(handle)
			return p, decode(ServiceAffinity, given, &p.args)
		},
	}
	for name, strategy := range Strategies() {
		all[name] = func(ctx context.Context, given runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
			return newResources(ctx, name, strategy, given, handle)
		}
	}
	return all
}

// Strategies are those of NodeResourcesFit, by the name of the plugin that does nothing else.
func Strategies() map[string]configv1.ScoringStrategyType {
	return map[string]configv1.ScoringStrategyType{
		NodeResourcesLeastAllocated: configv1.LeastAllocated,
		NodeResourcesMostAllocated:  configv1.MostAllocated,
		RequestedToCapacityRatio:    configv1.RequestedToCapacityRatio,
	}
}

// decode reads the arguments of a plugin, strictly.
func decode(name string, given runtime.Object, into any) error {
	if given == nil {
		return nil
	}
	raw, ok := given.(*runtime.Unknown)
	if !ok {
		return fmt.Errorf("plugin %s: arguments of the type %T", name, given)
	}
	if err := yaml.UnmarshalStrict(raw.Raw, into); err != nil {
		return fmt.Errorf("plugin %s: arguments: %w", name, err)
	}
	return nil
}
