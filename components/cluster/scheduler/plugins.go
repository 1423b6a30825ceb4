package scheduler

import (
	"fmt"

	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"kubelith.io/kubelith/plugins/scheduling"
)

// extended returns the profiles with the current scheduling plugins, and the registry that builds them. They are
// complete only now: a plugin reports the weight of its scores when it starts.
func (s *Server) extended() (profiles []schedulerconfig.KubeSchedulerProfile, registry frameworkruntime.Registry, end func(), err error) {
	if s.opts.Plugins == nil {
		return s.config.Profiles, nil, func() {}, nil
	}
	extension := scheduling.New(s.opts.Plugins, s.opts.Log)
	profiles, err = extension.Profiles(s.config.Profiles)
	if err != nil {
		extension.Close()
		return nil, nil, nil, fmt.Errorf("--scheduler-arg config: %w", err)
	}
	return profiles, extension.Registry(), extension.Close, nil
}
