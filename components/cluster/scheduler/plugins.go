package scheduler

import (
	"fmt"

	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"kubelith.io/kubelith/components/cluster/scheduler/removed"
	"kubelith.io/kubelith/plugins/scheduling"
)

// extended returns the profiles with the current scheduling plugins, and the registry that builds them. They are
// complete only now: a plugin reports the weight of its scores when it starts.
func (s *Server) extended(given []schedulerconfig.KubeSchedulerProfile) (
	profiles []schedulerconfig.KubeSchedulerProfile, registry frameworkruntime.Registry, end func(), err error,
) {
	registry = removed.Registry()
	if s.opts.Plugins == nil {
		return given, registry, func() {}, nil
	}
	extension := scheduling.New(s.opts.Plugins, s.opts.Log)
	if profiles, err = extension.Profiles(given); err == nil {
		err = registry.Merge(extension.Registry())
	}
	if err != nil {
		extension.Close()
		return nil, nil, nil, fmt.Errorf("--scheduler-arg config: %w", err)
	}
	return profiles, registry, extension.Close, nil
}
