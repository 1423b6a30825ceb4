package servers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

const (
	// spaceEvery is how often the size of etcd's database is checked, and tightEvery while it is nearly full.
	spaceEvery, tightEvery = time.Minute, 5 * time.Second
	// nearlyFull is the part of its quota that etcd's database may reach before it is shrunk.
	nearlyFull = 0.8
	// worthwhile is the part of the quota that a defragmentation must give back.
	worthwhile = 0.02
	// keptFor is for how long old revisions stay while etcd accepts writes: clients that read a list page by page, or
	// resume a watch, need them. The API server removes older ones, too.
	keptFor = 5 * time.Minute
	// compactTimeout bounds the removal of old revisions.
	compactTimeout = time.Minute
)

// Events of the Node, and reasons of its condition.
const (
	reasonRoom       = "EtcdSpace"
	reasonNearlyFull = "EtcdNearlyFull"
	reasonFull       = "EtcdFull"
	reasonCorrupt    = "EtcdCorrupt"
)

// Space is the size of one server's database.
type Space struct {
	// Bytes is the size of the file, InUse of what is in it; without defragmentation the rest is used again, but never
	// returned. Quota is the size at which etcd refuses writes.
	Bytes, InUse, Quota int64
	// Alarms are those of all servers.
	Alarms []Alarm `json:",omitempty"`
	// SlowSync is how long 99 of 100 syncs of etcd's log to the disk took at most, in seconds; 0: there was none yet.
	SlowSync float64 `json:",omitempty"`

	revision int64
}

// tight reports whether a database is nearly full.
func (s Space) tight() bool { return s.Bytes >= int64(nearlyFull*float64(s.Quota)) }

// enough is a quota of which the database is not nearly full, bytes.
func (s Space) enough() int64 { return int64(float64(s.Bytes)/nearlyFull) + 1<<20 }

// shrinkable reports whether a defragmentation would give the database room.
func (s Space) shrinkable() bool {
	return s.tight() && s.InUse < int64(nearlyFull*float64(s.Quota)) && float64(s.Bytes-s.InUse) >= worthwhile*float64(s.Quota)
}

// space keeps the database of this server below its quota.
type space struct {
	checked time.Time
	// tightSince is when it was found nearly full; zero: it has room. full: writes are refused, and only deletes help.
	tightSince time.Time
	full       bool
	corrupt    string
	// revisions are those of the last minutes, oldest first, and compacted is the last one that was removed.
	revisions []revisionAt
	compacted int64
	// defragmented is when it was defragmented last, and failed when that failed.
	defragmented, failed time.Time
}

// revisionAt is a revision of etcd at a time.
type revisionAt struct {
	at       time.Time
	revision int64
}

// keep shrinks the database when it is nearly full, and clears the alarm when that has helped. Without it, etcd refuses
// all writes from then on, until an operator does these three steps on every server.
// Source: https://etcd.io/docs/v3.6/op-guide/maintenance/#space-quota.
func (k *space) keep(ctx context.Context, s *Server) {
	every := spaceEvery
	if !k.tightSince.IsZero() {
		every = tightEvery
	}
	if time.Since(k.checked) < every {
		return
	}
	k.checked = time.Now()
	now, err := s.space(ctx)
	if err != nil {
		return // etcd's own log has the reason
	}
	k.remember(k.checked, now.revision)
	if name := corrupt(now.Alarms); name != "" {
		if k.corrupt != name {
			s.tell(ctx, corev1.EventTypeWarning, reasonCorrupt, fmt.Sprintf("the etcd data of server %[1]s differs from that of the others, "+
				"and nothing can be read or written: stop %[1]s, run kubelith etcd alarm disarm on another server, "+
				"move %[1]s's server/db/member away and start it, and it copies the data of the others", name))
		}
		k.corrupt = name
		return // a compaction would take away what shows the difference
	}
	k.corrupt = ""
	if now.tight() {
		k.becomesTight(ctx, s, now)
		if now, err = k.shrink(ctx, s, now); err != nil {
			s.opts.Log.Warnf("cannot shrink etcd's database: %v", err)
			return
		}
	}
	// First, because with an alarm no Event is written.
	for _, a := range s.outdated(now) {
		if err := s.disarm(ctx, a); err != nil {
			s.opts.Log.Warnf("cannot clear etcd's alarm %s: %v", a, err)
			return
		}
		s.opts.Log.Infof("cleared etcd's alarm %s", a)
	}
	if now.tight() {
		k.staysTight(ctx, s, now)
	} else {
		k.hasRoom(ctx, s, now)
	}
}

func (k *space) becomesTight(ctx context.Context, s *Server, now Space) {
	if !k.tightSince.IsZero() {
		return
	}
	k.tightSince = k.checked
	message := fmt.Sprintf("etcd's database is nearly full: %s of %s; removing old revisions and defragmenting", mib(now.Bytes), mib(now.Quota))
	s.tell(ctx, corev1.EventTypeWarning, reasonNearlyFull, message)
	s.report(corev1.ConditionTrue, reasonNearlyFull, message)
}

// staysTight warns when etcd refuses writes and nothing but deletes helps.
func (k *space) staysTight(ctx context.Context, s *Server, now Space) {
	if !now.refusesWrites() || now.shrinkable() { // its turn to defragment comes
		k.full = false
		return
	}
	message := fmt.Sprintf("etcd's database uses %s of %s: "+
		"delete objects, or start the servers with --etcd-arg quota-backend-bytes=%d or more", mib(now.InUse), mib(now.Quota), now.enough())
	if !k.full {
		s.tell(ctx, corev1.EventTypeWarning, reasonFull, message)
		s.report(corev1.ConditionTrue, reasonFull, message)
	}
	k.full = true
}

func (k *space) hasRoom(ctx context.Context, s *Server, now Space) {
	if !k.tightSince.IsZero() {
		s.tell(ctx, corev1.EventTypeNormal, reasonRoom, fmt.Sprintf("etcd's database has room again: %s of %s", mib(now.Bytes), mib(now.Quota)))
	}
	k.tightSince, k.full = time.Time{}, false
	s.report(corev1.ConditionFalse, reasonRoom, fmt.Sprintf("etcd's database is below %.0f %% of %s", 100*nearlyFull, mib(now.Quota)))
}

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// remember keeps one revision for each minute that may still be compacted to.
func (k *space) remember(at time.Time, revision int64) {
	if n := len(k.revisions); n > 0 && at.Sub(k.revisions[n-1].at) < spaceEvery {
		return
	}
	k.revisions = append(k.revisions, revisionAt{at, revision})
	for len(k.revisions) > 1 && at.Sub(k.revisions[1].at) >= keptFor {
		k.revisions = slices.Delete(k.revisions, 0, 1)
	}
}

// compactTo returns the revision up to which old ones are to be removed: all while etcd refuses writes, else those that
// are old enough. While etcd refuses writes, only deletes make a new revision, so that each removal gives room.
func (k *space) compactTo(at time.Time, now Space) int64 {
	switch {
	case now.refusesWrites():
		return now.revision
	case len(k.revisions) > 0 && at.Sub(k.revisions[0].at) >= keptFor:
		return k.revisions[0].revision
	}
	return 0
}

// shrink removes old revisions and defragments, as far as each helps, and returns the size of the database after that.
func (k *space) shrink(ctx context.Context, s *Server, now Space) (Space, error) {
	if to := k.compactTo(k.checked, now); to > k.compacted {
		if err := s.compact(ctx, to); err != nil {
			return now, err
		}
		k.compacted = to
		var err error
		if now, err = s.space(ctx); err != nil {
			return now, err
		}
	}
	if !now.shrinkable() || time.Since(k.failed) < defragRetry || !k.mayDefragment(s.opts.Etcd.Members(), now.refusesWrites(), time.Now()) {
		return now, nil
	}
	err := s.defragment(ctx)
	if errors.Is(err, errOtherDefragments) {
		return now, nil
	}
	if errors.Is(err, errDefragment) {
		k.failed = time.Now()
	}
	if err != nil {
		return now, err
	}
	k.defragmented = time.Now()
	return s.space(ctx)
}

// compact removes revisions. Those that are gone already are no error.
func (s *Server) compact(ctx context.Context, to int64) error {
	err := s.use(ctx, compactTimeout, func(ctx context.Context, c *clientv3.Client) error {
		_, err := c.Compact(ctx, to, clientv3.WithCompactPhysical())
		return err
	})
	if errors.Is(err, rpctypes.ErrCompacted) {
		return nil
	}
	return err
}

// space queries this server's member. Without a majority it fails: the alarms are those of the cluster.
func (s *Server) space(ctx context.Context) (Space, error) {
	var out Space
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		st, err := c.Status(ctx, etcd.Endpoint(s.opts.Socket))
		if err != nil {
			return err
		}
		out = Space{Bytes: st.DbSize, InUse: st.DbSizeInUse, Quota: st.DbSizeQuota, revision: st.Header.Revision}
		out.Alarms, err = s.alarms(ctx, c)
		return err
	})
	return out, err
}

// ReportSpace has report called with the Node's condition names.EtcdSpaceCondition, after checks. Call it before Run.
func (s *Server) ReportSpace(report func(status corev1.ConditionStatus, reason, message string)) {
	s.reportSpace = report
}

func (s *Server) report(status corev1.ConditionStatus, reason, message string) {
	if s.reportSpace != nil {
		s.reportSpace(status, reason, message)
	}
}

// tell logs, and creates an Event for this server's Node, if the API can write one. A witness has no Node.
func (s *Server) tell(ctx context.Context, kind, reason, message string) {
	if kind == corev1.EventTypeWarning {
		s.opts.Log.Warn(message)
	} else {
		s.opts.Log.Info(message)
	}
	if s.isWitness() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	// Without space this fails, and the log has it.
	_ = events.Write(ctx, s.client, events.Node(s.opts.NodeName), events.Source(s.opts.NodeName), kind, reason, message)
}
