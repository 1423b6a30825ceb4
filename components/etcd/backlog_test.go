package etcd

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// TestStartAfterManyWrites: with more entries to apply than etcd lets requests wait for, a start repeats nothing: it used to
// refuse its own announcement tens of thousands of times.
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
		t.Errorf("no snapshot was made in %d writes: %v", writes, logs.All())
	}
	logs = run(t, dir, func(c *clientv3.Client) {
		if _, err := c.Get(t.Context(), "/0/0"); err != nil {
			t.Error(err)
		}
	})
	if n := logs.FilterMessageSnippet("failed to publish").Len(); n > 0 {
		t.Errorf("%d lines say that it cannot announce itself", n)
	}
}

// run runs a member while do uses it, and returns what it logs.
func run(t *testing.T, dir string, do func(*clientv3.Client)) *observer.ObservedLogs {
	t.Helper()
	core, logs := observer.New(zapcore.InfoLevel)
	opts := options(dir)
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
