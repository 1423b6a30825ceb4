package scheduler

import (
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"

	"kubelith.io/kubelith/base/args"
)

// complete fills the component configuration: upstream's defaults, or the file
// of --scheduler-arg=config=FILE, or a policy.
func (s *Server) complete() error {
	o := options.NewOptions()
	defaults, err := latest.Default()
	if err != nil {
		return err
	}
	o.ComponentConfig = defaults
	s.policy.addFlags(o.Flags.FlagSet("policy"))
	if err := args.Apply("--scheduler-arg", *o.Flags, Refused(), s.opts.Args); err != nil {
		return err
	}
	if err := s.policy.complete(o.ConfigFile); err != nil {
		return err
	}
	cfg := o.ComponentConfig
	s.policy.use(cfg)
	if o.ConfigFile != "" {
		if cfg, err = options.LoadConfigFromFile(klog.Background(), o.ConfigFile); err != nil {
			return fmt.Errorf("--scheduler-arg config=%s: %w", o.ConfigFile, err)
		}
		if err := ignored(cfg, defaults); err != nil {
			return fmt.Errorf("--scheduler-arg config=%s: %w", o.ConfigFile, err)
		}
		o.ComponentConfig = cfg
	}
	cfg.LeaderElection.LeaderElect = false
	o.SecureServing.BindPort = 0
	if errs := o.Validate(); len(errs) > 0 {
		return fmt.Errorf("--scheduler-arg: %w", errs[0])
	}
	s.config, s.upstream = cfg, o
	return nil
}

// ignored refuses settings in a file that a single process does not use.
func ignored(cfg, defaults *config.KubeSchedulerConfiguration) error {
	election := defaults.LeaderElection
	election.LeaderElect = cfg.LeaderElection.LeaderElect // there is no election; disabling it is no error
	switch {
	case cfg.ClientConnection != defaults.ClientConnection:
		return fmt.Errorf("clientConnection: cannot be set: %s", args.Clients()["kubeconfig"])
	case cfg.LeaderElection != election:
		return fmt.Errorf("leaderElection: cannot be set: %s", args.Election()["leader-elect"])
	case cfg.DelayCacheUntilActive:
		return fmt.Errorf("delayCacheUntilActive: cannot be set: %s", args.Election()["leader-elect"])
	}
	return nil
}

// Refused are the upstream flags that Kubelith sets itself or does not use.
func Refused() args.Refused {
	return args.Merge(args.Logging(), args.FeatureGates(), args.Clients(), args.Serving(), args.Election(), args.Refused{
		"write-config-to": "kubelith server does not end after writing a file",
	})
}
