package servers

import (
	"context"
	"errors"
	"fmt"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/components/controlplane/etcd"
)

const (
	// spaceEvery is how often the size of etcd's database is checked, and fullEvery while it is nearly full.
	spaceEvery, fullEvery = time.Minute, 5 * time.Second
	// nearlyFull is the part of its quota that etcd's database may reach before it is shrunk.
	nearlyFull = 0.8
	// worthwhile is the part of the quota that a defragmentation must give back.
	worthwhile = 0.02
	// defragTimeout bounds a defragmentation. It rewrites the database: some seconds for 4 GiB on a fast disk.
	defragTimeout = 5 * time.Minute
)

// Space is the size of one server's database.
type Space struct {
	// Bytes is the size of the file, InUse of what is in it; without defragmentation the rest is used again, but never
	// returned. Quota is the size at which etcd refuses writes.
	Bytes, InUse, Quota int64
	// Alarms of this server: NOSPACE and CORRUPT.
	Alarms []string `json:",omitempty"`
	// Corrupt is the server whose data differs from that of the others, if etcd has found one.
	Corrupt string `json:",omitempty"`
}

// space keeps the database of this server below its quota.
type space struct {
	checked time.Time
	// tight: it was nearly full at the last check. full: shrinking it did not help then.
	tight, full bool
	corrupt     string
}

// keep shrinks the database when it is nearly full, and clears the alarm when that has helped. Without it, etcd refuses
// all writes from then on, until an operator does these three steps on every server.
// Source: https://etcd.io/docs/v3.6/op-guide/maintenance/#space-quota.
func (k *space) keep(ctx context.Context, s *Server) {
	every := spaceEvery
	if k.tight {
		every = fullEvery
	}
	if time.Since(k.checked) < every {
		return
	}
	k.checked = time.Now()
	now, err := s.space(ctx)
	if err != nil {
		return // etcd's own log has the reason
	}
	if now.Corrupt != "" {
		if k.corrupt != now.Corrupt {
			s.tell(ctx, corev1.EventTypeWarning, "EtcdCorrupt", fmt.Sprintf("the etcd of server %[1]s has other data than that of the others, and nothing can be read or written: stop %[1]s, run kubelith etcd disarm on another server, move %[1]s's server/db away and start it: it takes a copy from the others", now.Corrupt))
		}
		k.corrupt = now.Corrupt
		return // a compaction would take away what shows the difference
	}
	k.corrupt = ""
	if !isTight(now) && len(now.Alarms) == 0 {
		if k.tight {
			s.tell(ctx, corev1.EventTypeNormal, "EtcdSpace", fmt.Sprintf("etcd's database has room again: %s of %s", mib(now.Bytes), mib(now.Quota)))
		}
		k.tight, k.full = false, false
		return
	}
	if !k.tight {
		s.tell(ctx, corev1.EventTypeWarning, "EtcdNearlyFull", fmt.Sprintf("etcd's database is nearly full: %s of %s; removing old revisions and defragmenting", mib(now.Bytes), mib(now.Quota)))
	}
	k.tight = true
	if err := s.shrink(ctx); err != nil {
		s.opts.Log.Warnf("cannot shrink etcd's database: %v", err)
		return
	}
	if now, err = s.space(ctx); err != nil {
		return
	}
	if isTight(now) {
		if !k.full {
			s.tell(ctx, corev1.EventTypeWarning, "EtcdFull", fmt.Sprintf("etcd's database has %s in use of %s: delete objects, or start the servers with a larger --etcd-arg quota-backend-bytes=N", mib(now.InUse), mib(now.Quota)))
		}
		k.full = true
		return
	}
	k.full = false
	if len(now.Alarms) == 0 {
		return
	}
	if err := s.Disarm(ctx); err != nil { // only NOSPACE is left
		s.opts.Log.Warnf("cannot clear the alarm of etcd: %v", err)
	}
}

// isTight reports whether a database is nearly full.
func isTight(s Space) bool { return s.Bytes >= int64(nearlyFull*float64(s.Quota)) }

func mib(bytes int64) string { return fmt.Sprintf("%d MiB", bytes>>20) }

// space queries this server's member.
func (s *Server) space(ctx context.Context) (Space, error) {
	var out Space
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		st, err := c.Status(ctx, etcd.Endpoint(s.opts.Socket))
		if err != nil {
			return err
		}
		out = Space{Bytes: st.DbSize, InUse: st.DbSizeInUse, Quota: st.DbSizeQuota}
		alarms, err := c.AlarmList(ctx)
		if err != nil {
			return err
		}
		for _, a := range alarms.Alarms {
			if a.MemberID == st.Header.MemberId {
				out.Alarms = append(out.Alarms, a.Alarm.String())
			}
			if a.Alarm == pb.AlarmType_CORRUPT {
				out.Corrupt = s.named(a.MemberID)
			}
		}
		return nil
	})
	return out, err
}

// shrink compacts, and defragments if that is worthwhile. A member that leads gives that to another one first: it does
// not answer meanwhile.
func (s *Server) shrink(ctx context.Context) error {
	err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		now, err := c.Get(ctx, "compact_rev_key") // any key: it has the revision
		if err != nil {
			return err
		}
		_, err = c.Compact(ctx, now.Header.Revision, clientv3.WithCompactPhysical())
		return err
	})
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) {
		return err
	}
	now, err := s.space(ctx)
	if err != nil || float64(now.Bytes-now.InUse) < worthwhile*float64(now.Quota) {
		return err
	}
	return s.Defragment(ctx)
}

// Defragment gives the file system what the database of this server does not use.
func (s *Server) Defragment(ctx context.Context) error {
	defer s.work.Begin("defragmenting etcd's database")()
	s.handOver(ctx)
	c, err := etcd.Dial(s.opts.Socket)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, defragTimeout)
	defer cancel()
	_, err = c.Defragment(ctx, etcd.Endpoint(s.opts.Socket))
	return err
}

// Disarm clears the alarm that this server has no space, and those that the data of a server differs: etcd answers
// nothing on any server until then.
func (s *Server) Disarm(ctx context.Context) error {
	return s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
		st, err := c.Status(ctx, etcd.Endpoint(s.opts.Socket))
		if err != nil {
			return err
		}
		alarms, err := c.AlarmList(ctx)
		if err != nil {
			return err
		}
		for _, a := range alarms.Alarms {
			if a.Alarm != pb.AlarmType_CORRUPT && a.MemberID != st.Header.MemberId {
				continue
			}
			if _, err := c.AlarmDisarm(ctx, (*clientv3.AlarmMember)(a)); err != nil {
				return err
			}
		}
		return nil
	})
}

// named returns the name of a member.
func (s *Server) named(id uint64) string {
	for _, m := range s.opts.Etcd.Members() {
		if m.ID == id {
			return nameOf(m)
		}
	}
	return fmt.Sprintf("%x", id)
}

// handOver lets another server that answers lead, if this one does: never a witness, which would give it back.
func (s *Server) handOver(ctx context.Context) {
	members := s.opts.Etcd.Members()
	if !leads(members) {
		return
	}
	for _, m := range members {
		if m.Self || m.Learner || m.Witness || s.ask(ctx, m) != nil {
			continue
		}
		err := s.change(ctx, func(ctx context.Context, c *clientv3.Client) error {
			_, err := c.MoveLeader(ctx, m.ID)
			return err
		})
		if err == nil {
			return
		}
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
	now := metav1.Now()
	// kubectl describe finds the Events of a Node by its name as UID, as the kubelet writes them. Without space this
	// fails, and the log has it.
	_, _ = s.client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{GenerateName: s.opts.NodeName + "-etcd-"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: s.opts.NodeName, UID: types.UID(s.opts.NodeName)},
		Type:           kind, Reason: reason, Message: message, Source: corev1.EventSource{Component: "kubelith", Host: s.opts.NodeName},
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}, metav1.CreateOptions{})
}
