package node

import (
	"context"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/components/controlplane/snapshot"
)

// snapshots returns the component that saves the cluster on a schedule.
func snapshots(cfg *config.Server, machine *machine, socket string, client *rest.Config, log logrus.FieldLogger) (*snapshot.Server, error) {
	o := snapshot.Options{
		Source:    snapshotSource(cfg, machine, socket),
		Dir:       snapshotDir(cfg),
		Retention: cfg.SnapshotRetention,
		Client:    client,
		Log:       log,
	}
	if cfg.SnapshotSchedule != config.SnapshotsNever {
		var err error
		if o.Schedule, err = cron.ParseStandard(cfg.SnapshotSchedule); err != nil {
			return nil, err
		}
	}
	return snapshot.New(o)
}

func snapshotSource(cfg *config.Server, machine *machine, socket string) snapshot.Source {
	return snapshot.Source{
		DataDir:    cfg.DataDir,
		Socket:     socket,
		ConfigFile: cfg.File,
		Settings:   fixedSettings(cfg),
		NodeIPs:    cfg.NodeIP,
		Kubelith:   machine.release,
		Kubernetes: version.Get().GitVersion,
		Keys:       snapshot.Keys{PassphraseFile: cfg.SnapshotPassphraseFile, Recipients: cfg.SnapshotRecipients},
	}
}

func snapshotDir(cfg *config.Server) string {
	if cfg.SnapshotDir != "" {
		return cfg.SnapshotDir
	}
	return snapshot.Dir(cfg.DataDir)
}

// beforeUpgrade returns what saves the cluster before a release uses data of another; nil where the release is the same.
func beforeUpgrade(cfg *config.Server, machine *machine, socket string, log logrus.FieldLogger) func(context.Context) {
	if machine.dir == nil { // a plan
		return nil
	}
	former := machine.dir.Former()
	if former == "" || cfg.SnapshotSchedule == config.SnapshotsNever {
		return nil
	}
	return func(ctx context.Context) {
		snapshot.BeforeUpgrade(ctx, snapshotSource(cfg, machine, socket), snapshotDir(cfg), former, log)
	}
}
