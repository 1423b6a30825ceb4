// Package snapshot saves and restores clusters, and is the component "snapshots", which saves them on a schedule.
//
// A snapshot is one file with all that a new machine needs: etcd's data, keys, manifests, settings and versions,
// encrypted if the operator wants (format.go). It is complete only when it has been restored once: SaveFile starts etcd
// on what it has written. Only then is it copied to an S3-compatible store, if there is one (copies.go, store.go;
// package bucket talks to it).
package snapshot

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/controlplane/snapshot/bucket"
)

// The names that snapshots begin with.
const (
	Scheduled = "scheduled"
	// Upgrade is of one that is saved before another release changes the data.
	Upgrade = "upgrade"
)

const (
	// retry is the time after a snapshot that failed.
	retry = 10 * time.Minute
	// settle is the time between a start and a snapshot that is overdue: a machine that has just started has other
	// work.
	settle = 10 * time.Minute
	// look is how often the clock is read: it can be set.
	look = 30 * time.Second
)

// Options of the component.
type Options struct {
	Source Source
	Dir    string
	// Schedule is when snapshots are saved; nil: never.
	Schedule cron.Schedule
	// Retention is how many of them are kept.
	Retention int
	// Store is where snapshots are copied to; nil: nowhere. StoreRetention is how many scheduled ones are kept there.
	Store          *bucket.Options
	StoreRetention int
	// Client creates Events of the server's node.
	Client *rest.Config
	Log    logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts Options
	save func(context.Context) (File, error)
	copy func(ctx context.Context, uploaded func(File)) error

	meters *meters
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Restarter = (*Server)(nil)
)

// New returns the component. It fails if the keys, or the store's files (credentials, CA), cannot be used.
func New(o Options) (*Server, error) {
	if err := o.Source.Keys.Validate(); err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	if o.Store != nil {
		b, err := bucket.Open(*o.Store)
		if err != nil {
			return nil, fmt.Errorf("snapshots: %w", err)
		}
		b.Close()
	}
	s := &Server{opts: o, meters: newMeters()}
	s.copy = s.syncStore
	s.save = func(ctx context.Context) (File, error) { return SaveFile(ctx, o.Source, o.Dir, Scheduled) }
	return s, nil
}

// Name implements lifecycle.Component.
func (*Server) Name() string { return "snapshots" }

// Needs implements lifecycle.Component.
func (*Server) Needs() []string { return []string{"etcd", "apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run implements lifecycle.Component. It is ready at once.
func (s *Server) Run(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return err
	}
	s.meters.register()
	node := s.opts.Source.Settings.NodeName
	recorder, stop := events.NewRecorder(ctx, client, events.Source(node))
	defer stop()
	event := func(kind, reason, message string) { recorder.Event(events.Node(node), kind, reason, message) }
	ready()
	saved := reconcile.NewSignal()
	var working sync.WaitGroup
	defer working.Wait()
	working.Go(func() { s.measure(ctx) })
	if s.opts.Store != nil {
		working.Go(func() { s.copies(ctx, saved, event) })
	}
	if s.opts.Schedule == nil {
		<-ctx.Done()
		return nil
	}
	s.loop(ctx, event, saved.Send)
	return nil
}

// loop saves snapshots when it is time, and calls done after each.
func (s *Server) loop(ctx context.Context, event func(kind, reason, message string), done func()) {
	next := s.opts.Schedule.Next(s.last())
	if next.Before(time.Now()) {
		next = time.Now().Add(settle)
	}
	for {
		for time.Now().Before(next) {
			if !reconcile.Sleep(ctx, min(look, time.Until(next))) {
				return
			}
			if again := s.opts.Schedule.Next(time.Now()); again.Before(next) { // the clock was set back
				next = again
			}
		}
		now := time.Now()
		f, err := s.save(ctx)
		if ctx.Err() != nil {
			return
		}
		next = s.opts.Schedule.Next(now)
		if err != nil {
			s.meters.notSaved()
			s.opts.Log.Errorf("cannot save a snapshot, retrying in %s: %v", retry, err)
			event(corev1.EventTypeWarning, "SnapshotFailed", fmt.Sprintf("Cannot save a snapshot: %v", err))
			if again := now.Add(retry); again.Before(next) {
				next = again
			}
			continue
		}
		s.meters.saved()
		s.meters.newest(f)
		s.opts.Log.Infof("saved the snapshot %s, %d bytes, in %s", f.Path, f.Bytes, time.Since(now).Round(time.Millisecond))
		event(corev1.EventTypeNormal, "SnapshotSaved", "Saved the snapshot "+f.Name())
		if _, err := prune(s.opts.Dir, Scheduled, s.opts.Source.Settings.NodeName, f.Cluster, s.opts.Retention, f.Path); err != nil {
			s.opts.Log.Errorf("cannot delete old snapshots: %v", err)
		}
		done()
	}
}

// last returns when the last scheduled snapshot was saved or, where there is none, when the cluster was created. A time
// that is to come is no reason to wait for it: the clock was ahead.
func (s *Server) last() time.Time {
	all, err := List(s.opts.Dir)
	if err != nil {
		s.opts.Log.Errorf("cannot read the snapshots: %v", err)
	}
	node := s.opts.Source.Settings.NodeName
	if f, ok := newestOf(all, node, func(f File) bool { return f.isOf(Scheduled, node) }); ok {
		return f.Created.Local()
	}
	info, err := os.Stat(filepath.Join(pki.Dir(s.opts.Source.DataDir), pki.ClusterCAFile))
	if err == nil && !info.ModTime().After(time.Now()) {
		return info.ModTime()
	}
	return time.Now()
}

// newestOf returns the newest snapshot of a node that can be read, was saved in the past and is wanted. all are the
// newest first.
func newestOf(all []File, node string, wanted func(File) bool) (File, bool) {
	now := time.Now()
	for _, f := range all {
		if f.Fault == "" && f.Settings.NodeName == node && !f.Created.After(now) && wanted(f) {
			return f, true
		}
	}
	return File{}, false
}

// measure keeps the metrics of the newest snapshot of this server, however it is saved or deleted, until ctx ends.
func (s *Server) measure(ctx context.Context) {
	for {
		if all, err := List(s.opts.Dir); err == nil { // else the schedule reports it
			f, _ := newestOf(all, s.opts.Source.Settings.NodeName, func(File) bool { return true })
			s.meters.newest(f)
		}
		if !reconcile.Sleep(ctx, look) {
			return
		}
	}
}

// BeforeUpgrade saves a snapshot of data that another release has used last, while nothing writes to it. A failure is
// logged: it does not keep a cluster down.
func BeforeUpgrade(ctx context.Context, s Source, dir, former string, log logrus.FieldLogger) {
	began := time.Now()
	f, err := SaveUpgrade(ctx, s, dir)
	switch {
	case f.Path == "":
		log.Errorf("cannot save a snapshot before the upgrade from %s, continuing without it: %v", former, err)
		return
	case err != nil:
		log.Errorf("cannot delete old snapshots: %v", err)
	}
	log.Infof("saved the snapshot %s before the upgrade from %s, in %s", f.Path, former, time.Since(began).Round(time.Millisecond))
}

// SaveUpgrade saves a snapshot before an upgrade, and deletes all but the last of earlier upgrades. If only that fails,
// it returns the snapshot with the error.
func SaveUpgrade(ctx context.Context, s Source, dir string) (File, error) {
	f, err := SaveFile(ctx, s, dir, Upgrade)
	if err != nil {
		return File{}, err
	}
	_, err = prune(dir, Upgrade, s.Settings.NodeName, f.Cluster, keptUpgrades, f.Path)
	return f, err
}

// keptUpgrades is how many snapshots of upgrades stay.
const keptUpgrades = 2
