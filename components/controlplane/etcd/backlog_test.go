package etcd

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestStartAfterManyWrites: a start never has more entries to apply than etcd lets requests wait for (5000). With more
// it refused its own announcement until the last was applied, tens of thousands of times.
func TestStartAfterManyWrites(t *testing.T) {
	const writes, clients = 5600, 200
	dir := t.TempDir()
	logs := run(t, dir, func(c *clientv3.Client) {
		var all sync.WaitGroup
		for i := range clients {
			all.Go(func() {
				for n := range writes / clients {
					if _, err := c.Put(t.Context(), fmt.Sprintf("/%d/%d", i, n), "x"); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
	})
	if n := logs.FilterMessageSnippet("triggering snapshot").Len() + logs.FilterMessageSnippet("saved snapshot").Len(); n == 0 {
		t.Errorf("no snapshot was taken in %d writes: %v", writes, logs.All())
	}
	logs = run(t, dir, func(c *clientv3.Client) {
		if _, err := c.Get(t.Context(), "/0/0"); err != nil {
			t.Error(err)
		}
	})
	// Until its first entry is applied etcd takes the index for 0 and still refuses its announcement: how often depends
	// on scheduling, and the log has it ten times at most (base/logging). What counts is how much there is to apply.
	if commit, snapshot := field(logs, "restarting local member", "commit-index"), field(logs, "constructed a snapshot from WAL record", "snapshot-index"); commit < writes || commit-snapshot > 5000 {
		t.Errorf("a start applies %d entries of %d", commit-snapshot, commit)
	}
}

// TestRareCommits: what is acknowledged is in the log, however late the database commits it: a copy that is taken while
// the member runs, as a crash leaves it, has all of it.
func TestRareCommits(t *testing.T) {
	const writes = 100
	dir, copied := t.TempDir(), t.TempDir()
	run(t, dir, func(c *clientv3.Client) {
		for i := range writes {
			if _, err := c.Put(t.Context(), fmt.Sprintf("/%d", i), "x"); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.CopyFS(filepath.Join(copied, "db"), os.DirFS(filepath.Join(dir, "db"))); err != nil {
			t.Fatal(err)
		}
	}, "backend-batch-interval=1h")
	run(t, copied, func(c *clientv3.Client) {
		got, err := c.Get(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil || got.Count != writes {
			t.Errorf("%+v, %v", got, err)
		}
	})
}

// field is a number in the line with a message; 0 without such a line.
func field(logs *observer.ObservedLogs, message, name string) uint64 {
	for _, line := range logs.FilterMessage(message).All() {
		if n, ok := line.ContextMap()[name].(uint64); ok {
			return n
		}
	}
	return 0
}

// run runs a member while do uses it, and returns what it logs.
func run(t *testing.T, dir string, do func(*clientv3.Client), args ...string) *observer.ObservedLogs {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	opts := options(dir, args...)
	opts.Zap = zap.New(core)
	s, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() { close(ready) }) }()
	select {
	case <-ready:
	case err := <-ended:
		t.Fatal(err)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{Endpoint(filepath.Join(dir, "etcd.sock"))}, DialTimeout: 30 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	do(c)
	c.Close()
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	return logs
}
