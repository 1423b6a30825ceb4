package snapshot

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
)

// firstCopies is the time between a start and the first comparison with the store: a machine that has just started has
// other work.
const firstCopies = time.Minute

// copies keeps in the store what is in the directory. It compares both when a snapshot is saved, and again after a
// failure, until ctx ends. It runs beside the schedule, which a store that is slow or away does not delay.
func (s *Server) copies(ctx context.Context, saved <-chan struct{}, event func(kind, reason, message string)) {
	wait := time.After(firstCopies)
	for {
		select {
		case <-ctx.Done():
			return
		case <-saved:
		case <-wait:
		}
		wait = nil
		err := s.copy(ctx, func(f File) {
			s.meters.uploaded()
			s.opts.Log.Infof("copied the snapshot %s to %s", f.Name(), f.Store)
			event(corev1.EventTypeNormal, "SnapshotUploaded", "Copied the snapshot "+f.Name()+" to the store")
		})
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			s.meters.notUploaded()
			s.opts.Log.Errorf("cannot copy snapshots to the store, retrying in %s: %v", retry, err)
			event(corev1.EventTypeWarning, "SnapshotUploadFailed", fmt.Sprintf("Cannot copy snapshots to the store: %v", err))
			wait = time.After(retry)
		}
	}
}

// syncStore copies what is missing in the store. It reads the credentials each time: they may have been replaced.
func (s *Server) syncStore(ctx context.Context, uploaded func(File)) error {
	b, err := bucket.Open(*s.opts.Store)
	if err != nil {
		return err
	}
	defer b.Close()
	cluster, err := clusterOf(pki.Dir(s.opts.Source.DataDir))
	if err != nil {
		return err
	}
	kept := kinds{Scheduled: s.opts.StoreRetention, Upgrade: keptUpgrades}
	newest, err := kept.sync(ctx, b, s.opts.Dir, cluster, s.opts.Source.Settings.NodeName, uploaded)
	if newest.Path != "" {
		s.meters.newestCopy(newest)
	}
	return err
}
