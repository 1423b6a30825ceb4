package node

import (
	"cmp"
	"context"
	"os"
	"path/filepath"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/version"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/datadir"
	"kubelith.io/kubelith/components/controlplane/snapshot"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
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
	if cfg.SnapshotS3Bucket != "" {
		store := StoreOptions(cfg)
		o.Store, o.StoreRetention = &store, cmp.Or(cfg.SnapshotS3Retention, cfg.SnapshotRetention)
	}
	if cfg.SnapshotSchedule != config.SnapshotsNever {
		var err error
		if o.Schedule, err = cron.ParseStandard(cfg.SnapshotSchedule); err != nil {
			return nil, err
		}
	}
	return snapshot.New(o)
}

// StoreOptions returns where snapshots are copied to. The settings must be valid.
func StoreOptions(cfg *config.Server) bucket.Options {
	timeout, _ := time.ParseDuration(cfg.SnapshotS3Timeout)
	return bucket.Options{
		Endpoint:        cfg.SnapshotS3Endpoint,
		Bucket:          cfg.SnapshotS3Bucket,
		Folder:          cfg.SnapshotS3Folder,
		Region:          cfg.SnapshotS3Region,
		CredentialsFile: cfg.SnapshotS3CredentialsFile,
		AccessKey:       cfg.SnapshotS3AccessKey,
		SecretKey:       cfg.SnapshotS3SecretKey,
		SessionToken:    cfg.SnapshotS3SessionToken,
		CAFile:          cfg.SnapshotS3CAFile,
		SkipTLSVerify:   cfg.SnapshotS3SkipTLSVerify,
		Insecure:        cfg.SnapshotS3Insecure,
		Lookup:          cfg.SnapshotS3BucketLookup,
		Timeout:         timeout,
	}
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

// beforeUpgrade returns what saves the cluster before a release uses data of another; nil where the release is the
// same.
func beforeUpgrade(cfg *config.Server, machine *machine, socket string, log logrus.FieldLogger) func(context.Context) {
	if machine.dir == nil { // a plan
		return nil
	}
	former := machine.dir.Former()
	if former == "" || cfg.SnapshotSchedule == config.SnapshotsNever {
		return nil
	}
	if _, err := os.Stat(filepath.Join(cfg.DataDir, datadir.Saved)); err == nil {
		return nil // kubelith upgrade has saved one
	}
	return func(ctx context.Context) {
		snapshot.BeforeUpgrade(ctx, snapshotSource(cfg, machine, socket), snapshotDir(cfg), former, log)
	}
}
