package main

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
	"go.uber.org/zap"
)

// TestHistory records an etcd to which somebody else writes too. Its history is possible, and is not any more after
// each change that a cluster must never make.
func TestHistory(t *testing.T) {
	one := start(t)
	others(t, one)
	members := []member{one, one} // two watches
	r, err := newRecorder(t.Context(), "/ours/", members, 60)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(3 * time.Second)
	if err := r.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		change func(h *history) bool // false: nothing to change
		want   string                // nothing: possible
	}{
		"as it was": {func(*history) bool { return true }, ""},
		"a write that is lost": {func(h *history) bool {
			return each(h, func(in model.EtcdRequest, out *model.MaybeEtcdResponse) bool {
				// A read that does not find what was there.
				if in.Range == nil || in.Range.Revision != 0 || in.Range.KeysOnly || len(out.Range.KVs) == 0 {
					return false
				}
				out.Range = &model.RangeResponse{Count: out.Range.Count - 1, KVs: out.Range.KVs[1:]}
				return true
			})
		}, "linearization"},
		"an old read at a revision": {func(h *history) bool {
			return each(h, func(in model.EtcdRequest, out *model.MaybeEtcdResponse) bool {
				if in.Range == nil || in.Range.Revision == 0 || in.Range.KeysOnly || len(out.Range.KVs) == 0 {
					return false
				}
				out.Range = &model.RangeResponse{}
				return true
			})
		}, "Failure"},
		"a watch that skips an event": {func(h *history) bool {
			return eachEvents(h, func(events []model.WatchEvent) ([]model.WatchEvent, bool) {
				return events[:0:0], true
			})
		}, "watch"},
		"a watch that repeats an event": {func(h *history) bool {
			return eachEvents(h, func(events []model.WatchEvent) ([]model.WatchEvent, bool) {
				return append(events, events[len(events)-1]), true
			})
		}, "watch"},
		"a log without a write": {func(h *history) bool {
			for i, p := range h.persisted {
				if p.Txn != nil && len(p.Txn.OperationsOnSuccess) == 1 && p.Txn.OperationsOnSuccess[0].Type == model.PutOperation {
					h.persisted = append(h.persisted[:i:i], h.persisted[i+1:]...)
					return true
				}
			}
			return false
		}, "watches saw more"},
	} {
		t.Run(name, func(t *testing.T) {
			h, err := r.history(members)
			if err != nil {
				t.Fatal(err)
			}
			if !tc.change(&h) {
				t.Fatal("there is nothing like it in the history")
			}
			// What is projected already stays as it is: all of its revisions are of our keys.
			if h, err = project(h.reports, h.persisted); err == nil {
				err = validate.ValidateAndReturnVisualize(zap.NewNop(), validate.Config{}, h.reports, h.persisted, time.Minute).Error()
			}
			if got := fmt.Sprint(err); (tc.want == "") != (err == nil) || !strings.Contains(got, tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
			t.Log(h)
		})
	}
}

// TestLogs: the logs of the members must be equal up to the last write.
func TestLogs(t *testing.T) {
	one := start(t)
	r, err := newRecorder(t.Context(), "/ours/", []member{one}, 60)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	all, err := logs([]member{one, one})
	if err != nil {
		t.Fatal(err)
	}
	done := isLast(r.prefix)
	if _, err := committed(all, done); err != nil {
		t.Error(err)
	}
	short := all[1]
	all[1] = short[:len(short)-1]
	for !done(short[len(short)-1]) {
		short = short[:len(short)-1]
		all[1] = short[:len(short)-1]
	}
	if _, err := committed(all, done); err == nil || !strings.Contains(err.Error(), "ends before the last write") {
		t.Errorf("a log without the last write: %v", err)
	}
	other, err := logs([]member{one})
	if err != nil {
		t.Fatal(err)
	}
	other[0][1].Data = append([]byte("x"), other[0][1].GetData()...)
	if _, err := committed([][]*entry{all[0], other[0]}, done); err == nil || !strings.Contains(err.Error(), "differ in entry") {
		t.Errorf("logs that differ: %v", err)
	}
	// The rest of that log begins after a snapshot: the entry was its own, and never committed.
	whole, err := committed([][]*entry{all[0]}, done)
	if err != nil {
		t.Fatal(err)
	}
	merged, err := committed([][]*entry{all[0], slices.Delete(other[0], 2, 3)}, done)
	if err != nil || len(merged) != len(whole) {
		t.Errorf("a gap: %d entries of %d, %v", len(merged), len(whole), err)
	}
}

// each changes the first answer for which change returns true.
func each(h *history, change func(in model.EtcdRequest, out *model.MaybeEtcdResponse) bool) bool {
	for _, r := range h.reports {
		for i, o := range r.KeyValue {
			out := o.Output.(model.MaybeEtcdResponse)
			if out.Error == "" && change(o.Input.(model.EtcdRequest), &out) {
				r.KeyValue[i].Output = out
				return true
			}
		}
	}
	return false
}

// eachEvents changes the events in the middle of the first watch.
func eachEvents(h *history, change func([]model.WatchEvent) ([]model.WatchEvent, bool)) bool {
	for _, r := range h.reports {
		for _, w := range r.Watch {
			middle := len(w.Responses) / 2
			for i := range w.Responses {
				if a := &w.Responses[i]; i >= middle && len(a.Events) > 0 {
					events, ok := change(a.Events)
					a.Events = events
					return ok
				}
			}
		}
	}
	return false
}

// start starts an etcd of one member.
func start(t *testing.T) member {
	t.Helper()
	dir := t.TempDir()
	c := embed.NewConfig()
	c.Dir, c.ZapLoggerBuilder = filepath.Join(dir, "db"), embed.NewZapLoggerBuilder(zap.NewNop())
	client, peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "c")}, url.URL{Scheme: "unix", Path: filepath.Join(dir, "p")}
	c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	c.InitialCluster = c.Name + "=" + peer.String()
	e, err := embed.StartEtcd(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return member{client.Path, c.Dir}
}

// others writes to other keys until the test ends.
func others(t *testing.T, m member) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{"unix://" + m.socket}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ctx.Err() == nil; i++ {
			key := fmt.Sprintf("/theirs/%d", i%7)
			_, _ = c.Txn(ctx).If(clientv3.Compare(clientv3.Version(key), ">", int64(i%3))).Then(clientv3.OpPut(key, "x")).Else(clientv3.OpDelete(key), clientv3.OpPut(key, "y")).Commit()
			time.Sleep(3 * time.Millisecond)
		}
	}()
	t.Cleanup(func() { cancel(); <-done; c.Close() })
}
