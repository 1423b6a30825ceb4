package etcd

import (
	"context"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// TestAlarms: those of members that are gone stay, also in a copy, until they are cleared; a member that is made the
// only one has none.
func TestAlarms(t *testing.T) {
	o := options(t.TempDir())
	with := func(o Options, do func(context.Context, *clientv3.Client) error) {
		t.Helper()
		if err := With(t.Context(), o, func(c *clientv3.Client) error { return do(t.Context(), c) }); err != nil {
			t.Fatal(err)
		}
	}
	count := func(ctx context.Context, c *clientv3.Client) int {
		t.Helper()
		all, err := c.AlarmList(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(all.Alarms)
	}
	raise := func(ctx context.Context, c *clientv3.Client) error {
		for id, kind := range map[uint64]etcdserverpb.AlarmType{0x1f: etcdserverpb.AlarmType_NOSPACE, 0x2f: etcdserverpb.AlarmType_CORRUPT} {
			_, err := etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: id, Alarm: kind})
			if err != nil {
				return err
			}
		}
		return nil
	}
	with(o, raise)
	with(o, func(ctx context.Context, c *clientv3.Client) error {
		if n := count(ctx, c); n != 2 {
			t.Errorf("%d alarms after a start, want 2", n)
		}
		if err := ClearAlarms(ctx, c); err != nil {
			return err
		}
		if n := count(ctx, c); n != 0 {
			t.Errorf("%d alarms are left", n)
		}
		return raise(ctx, c)
	})
	o.Reset = true
	with(o, func(ctx context.Context, c *clientv3.Client) error {
		if n := count(ctx, c); n != 0 {
			t.Errorf("%d alarms after a reset", n)
		}
		_, err := c.Put(ctx, "/a", "x")
		return err
	})
}

// TestReopenedOnSlowDisk: a member that opens to others in place still commits seldom, and has their ticks.
func TestReopenedOnSlowDisk(t *testing.T) {
	s, err := New(options(t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	s.slowSync = time.Second
	next, err := s.configure(&Peer{URL: "https://192.0.2.1:2380"})
	if err != nil {
		t.Fatal(err)
	}
	s.replace(next)
	if s.cfg != next || s.cfg.BackendBatchInterval != 20*time.Second || s.cfg.ElectionMs != peerElectionMs {
		t.Errorf("a commit comes every %s, the election timeout is %d ms", s.cfg.BackendBatchInterval, s.cfg.ElectionMs)
	}
}
