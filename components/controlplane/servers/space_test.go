package servers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/components/controlplane/etcd"
)

func TestTight(t *testing.T) {
	for _, tc := range []struct {
		bytes, inUse      int64
		tight, shrinkable bool
	}{
		{79, 10, false, false},
		{80, 10, true, true},
		{80, 78, true, true},
		{80, 79, true, false},  // a defragmentation gives too little
		{100, 85, true, false}, // and here not enough
		{100, 79, true, true},
	} {
		s := Space{Bytes: tc.bytes, InUse: tc.inUse, Quota: 100}
		if s.tight() != tc.tight || s.shrinkable() != tc.shrinkable {
			t.Errorf("%d of 100, %d in use: tight %t, shrinkable %t", tc.bytes, tc.inUse, s.tight(), s.shrinkable())
		}
	}
}

// TestCompactTo: while etcd accepts writes, the revisions of the last minutes stay.
func TestCompactTo(t *testing.T) {
	var k space
	began := time.Now()
	full := []Alarm{{Kind: NoSpace}}
	for i, step := range []struct {
		after    time.Duration
		revision int64
		alarms   []Alarm
		want     int64
	}{
		{0, 10, nil, 0},
		{5 * time.Second, 11, nil, 0}, // less than a minute: not kept
		{time.Minute, 20, nil, 0},
		{2 * time.Minute, 30, nil, 0},
		{keptFor - 1, 50, nil, 0},
		{keptFor - 1, 50, full, 50},
		{keptFor, 60, nil, 10},
		{keptFor + time.Minute, 70, nil, 20},
		{keptFor + 90*time.Second, 80, nil, 20},
		{keptFor + 2*time.Minute, 90, []Alarm{{Kind: Corrupt}}, 30},
		{time.Hour, 100, nil, 90},
	} {
		at := began.Add(step.after)
		k.remember(at, step.revision)
		if got := k.compactTo(at, Space{revision: step.revision, Alarms: step.alarms}); got != step.want {
			t.Errorf("step %d: up to revision %d, want %d", i, got, step.want)
		}
	}
	if len(k.revisions) > int(keptFor/spaceEvery)+2 {
		t.Errorf("it keeps %d revisions", len(k.revisions))
	}
}

func TestMayDefragment(t *testing.T) {
	began := time.Now()
	alone := []etcd.Member{{ID: 1, Self: true, Leader: true}}
	follower := []etcd.Member{{ID: 1, Leader: true}, {ID: 2, Self: true}}
	leader := []etcd.Member{{ID: 1, Self: true, Leader: true}, {ID: 2}}
	for name, tc := range map[string]struct {
		members      []etcd.Member
		after        time.Duration // since it is tight
		defragmented time.Time
		want         bool
	}{
		"alone":                   {alone, 0, time.Time{}, true},
		"alone, again":            {alone, defragEvery - 1, began, false},
		"alone, much later":       {alone, defragEvery, began, true},
		"a follower":              {follower, 0, time.Time{}, true},
		"a follower, again":       {follower, time.Minute, began, false},
		"the leader":              {leader, leaderWaits - 1, time.Time{}, false},
		"the leader, last":        {leader, leaderWaits, time.Time{}, true},
		"the leader, again":       {leader, leaderWaits, began, false},
		"the leader, before that": {leader, leaderWaits, began.Add(-defragEvery), true},
	} {
		k := space{tightSince: began, defragmented: tc.defragmented}
		if got := k.mayDefragment(tc.members, false, began.Add(tc.after)); got != tc.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// TestTurns: while etcd refuses writes, each member has its turn, the leader's is the last, and no two have it at a
// time.
func TestTurns(t *testing.T) {
	members := []etcd.Member{{ID: 7}, {ID: 3, Leader: true}, {ID: 9}}
	var order []uint64
	for at := time.Unix(0, 0); at.Before(time.Unix(0, 0).Add(3 * turn)); at = at.Add(turn / 2) {
		var have []uint64
		for i := range members {
			view := slices.Clone(members)
			view[i].Self = true
			if (&space{}).mayDefragment(view, true, at) {
				have = append(have, members[i].ID)
			}
		}
		if len(have) != 1 {
			t.Fatalf("at %s it is the turn of %v", at, have)
		}
		order = append(order, have...)
	}
	if want := []uint64{7, 7, 9, 9, 3, 3}; !slices.Equal(order, want) {
		t.Errorf("the turns are %v, want %v", order, want)
	}
	if hasTurn(nil, time.Now()) {
		t.Error("before etcd runs it is nobody's turn")
	}
}

// TestOutdated: each server clears its own alarm once it has room, and those of servers that cannot.
func TestOutdated(t *testing.T) {
	members := member{{ID: 1, Name: "a", Self: true}, {ID: 2, Name: "b"}, {ID: 3, Name: "c"}, {ID: 4, Name: "d"}}
	s := server(t, members)
	s.missing[3], s.missing[4] = time.Now().Add(-s.absentFor), time.Now()
	alarm := func(id uint64, kind pb.AlarmType) Alarm { return alarmOf(id, kind, members) }
	all := []Alarm{alarm(1, pb.AlarmType_NOSPACE), alarm(2, pb.AlarmType_NOSPACE), alarm(3, pb.AlarmType_NOSPACE), alarm(4, pb.AlarmType_NOSPACE), alarm(0x1f, pb.AlarmType_NOSPACE),
		alarm(1, pb.AlarmType_CORRUPT), alarm(0x1f, pb.AlarmType_CORRUPT)}
	for name, tc := range map[string]struct {
		bytes int64
		want  []string
	}{
		"room":        {79, []string{"NOSPACE of server a", "NOSPACE of server c", "NOSPACE of a server that is no longer in the cluster (1f)"}},
		"nearly full": {80, []string{"NOSPACE of server c", "NOSPACE of a server that is no longer in the cluster (1f)"}},
		"full":        {100, nil},
	} {
		var got []string
		for _, a := range s.outdated(Space{Bytes: tc.bytes, Quota: 100, Alarms: all}) {
			got = append(got, a.String())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if got := corrupt(all); got != "a" {
		t.Errorf("the data of %q differs", got)
	}
}

// withEtcd runs a lone etcd with a quota of 4 MiB, and returns in do a server for it, its log, and its condition.
func withEtcd(t *testing.T, do func(c *clientv3.Client, s *Server, log *bytes.Buffer, condition *string) error) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"quota-backend-bytes=4194304", "backend-batch-limit=1"} // each write counts at once
	o := etcd.Options{Args: args, DataDir: filepath.Join(dir, "db"), Socket: filepath.Join(dir, "etcd.sock"), Name: "a", Zap: zap.NewNop()}
	err := etcd.With(t.Context(), o, func(c *clientv3.Client) error {
		st, err := c.Status(t.Context(), etcd.Endpoint(o.Socket))
		if err != nil {
			return err
		}
		s := server(t, member{{ID: st.Header.MemberId, Name: "a", Self: true, Leader: true}})
		var log bytes.Buffer
		s.opts.Socket, s.opts.Log = o.Socket, &logrus.Logger{Out: &log, Formatter: &logrus.TextFormatter{DisableTimestamp: true}, Level: logrus.InfoLevel}
		var condition string
		s.ReportSpace(func(status corev1.ConditionStatus, reason, _ string) { condition = string(status) + " " + reason })
		return do(c, s, &log, &condition)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// raise raises an alarm, as etcd does.
func raise(ctx context.Context, c *clientv3.Client, id uint64, kind pb.AlarmType) error {
	_, err := pb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &pb.AlarmRequest{Action: pb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: kind})
	return err
}

// TestKeep: a database that gets full and is emptied accepts writes again, and so does one with the alarm of a server
// that is gone.
func TestKeep(t *testing.T) {
	withEtcd(t, func(c *clientv3.Client, s *Server, log *bytes.Buffer, condition *string) error {
		ctx := t.Context()
		var k space
		check := func() Space {
			k.checked = time.Time{}
			k.keep(ctx, s)
			now, err := s.space(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return now
		}
		if err := raise(ctx, c, 0x1f, pb.AlarmType_NOSPACE); err != nil {
			return err
		}
		if now := check(); len(now.Alarms) != 0 || *condition != "False EtcdSpace" || !strings.Contains(log.String(), "no longer in the cluster (1f)") {
			t.Errorf("with the alarm of a server that is gone: %+v, %s, %s", now, *condition, log)
		}
		keys := 0
		for full := 0; full < 2; keys++ {
			if _, err := c.Put(ctx, fmt.Sprint("/", keys), strings.Repeat("x", 32<<10)); err != nil {
				return err
			}
			now, err := s.space(ctx)
			if err != nil {
				return err
			}
			full++
			if float64(now.InUse) <= 0.87*float64(now.Quota) {
				full = 0
			} else if full == 1 {
				time.Sleep(300 * time.Millisecond) // until etcd's next commit, what was freed counts as in use
			}
		}
		now := check()
		if !now.tight() || *condition != "True EtcdNearlyFull" || !strings.Contains(log.String(), "etcd's database is nearly full") {
			t.Fatalf("nearly full: %+v, %s, %s", now, *condition, log)
		}
		if err := raise(ctx, c, s.opts.Etcd.Members()[0].ID, pb.AlarmType_NOSPACE); err != nil {
			return err
		}
		if now = check(); !now.refusesWrites() || *condition != "True EtcdFull" || !strings.Contains(log.String(), "delete objects") {
			t.Fatalf("full: %+v, %s, %s", now, *condition, log)
		}
		for i := 0; i < keys && now.tight(); i++ {
			if _, err := c.Delete(ctx, fmt.Sprint("/", i)); err != nil {
				return err
			}
			if i%20 == 19 {
				now = check()
			}
		}
		if now.tight() || len(now.Alarms) != 0 || *condition != "False EtcdSpace" || !strings.Contains(log.String(), "has room again") {
			t.Errorf("emptied: %+v, %s, %s", now, *condition, log)
		}
		_, err := c.Put(ctx, "/again", "x")
		return err
	})
}

// TestOneDefragments: etcd's lease is one server's at a time; without space there is none.
func TestOneDefragments(t *testing.T) {
	withEtcd(t, func(c *clientv3.Client, s *Server, _ *bytes.Buffer, _ *string) error {
		release, err := leaseDefrag(t.Context(), c)
		if err != nil {
			return err
		}
		if err := s.Defragment(t.Context()); !refusedWith(err, "a server is defragmenting its database") {
			t.Errorf("two at a time: %v", err)
		}
		release()
		if err := s.Defragment(t.Context()); err != nil {
			t.Errorf("one after the other: %v", err)
		}
		if err := errors.Join(raise(t.Context(), c, 0x1f, pb.AlarmType_NOSPACE), raise(t.Context(), c, 0x2f, pb.AlarmType_CORRUPT)); err != nil {
			return err
		}
		if now, err := s.space(t.Context()); err != nil || len(now.Alarms) != 2 || now.Alarms[0].Kind != Corrupt || !now.refusesWrites() {
			t.Errorf("the alarms: %+v, %v", now, err)
		}
		if err := s.Disarm(t.Context()); err != nil {
			return err
		}
		if err := raise(t.Context(), c, 0x1f, pb.AlarmType_NOSPACE); err != nil {
			return err
		}
		if err := s.Defragment(t.Context()); err != nil {
			t.Errorf("without space: %v", err)
		}
		now, err := s.space(t.Context())
		if len(now.Alarms) != 1 {
			t.Errorf("the alarms: %+v", now)
		}
		return err
	})
}

// TestLongDefragmentation: one that takes longer than other work is no hang.
func TestLongDefragmentation(t *testing.T) {
	s, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s.work.Limit != 0 || s.long.Limit < defragTimeout+lifecycle.WorkLimit {
		t.Errorf("limits %s and %s", s.work.Limit, s.long.Limit)
	}
	s.long.Limit = -1
	defer s.long.Begin("defragmenting")()
	if err := s.Healthy(t.Context()); err == nil {
		t.Error("one that never ends is healthy")
	}
}

// TestAlarmsOfEarlierReleases: while servers are upgraded, commands of one release read what another one answers.
func TestAlarmsOfEarlierReleases(t *testing.T) {
	for text, want := range map[string]string{
		`{"Alarms":["NOSPACE"]}`:                       "NOSPACE of server that was asked",
		`{"Alarms":[{"kind":"CORRUPT","server":"b"}]}`: "CORRUPT of server b",
	} {
		var s Space
		if err := json.Unmarshal([]byte(text), &s); err != nil || len(s.Alarms) != 1 || s.Alarms[0].String() != want {
			t.Errorf("%s: %v, %v", text, s.Alarms, err)
		}
	}
}
