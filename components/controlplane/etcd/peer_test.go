package etcd

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"kubelith.io/kubelith/base/pki"
)

// TestTicksOfSeveral: a member that opens to others has the ticks of a network before any other can join; it does so in
// place, under a client that stays, and no write fails.
func TestTicksOfSeveral(t *testing.T) {
	dir := t.TempDir()
	files, err := pki.Ensure(pki.Options{Dir: filepath.Join(dir, "tls"), NodeName: "default", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)}, ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	peer := Peer{URL: "https://" + free.Addr().String(), Cert: files.Peer.Cert, Key: files.Peer.Key, CA: files.PeerCA.Cert}
	free.Close()

	o := options(dir)
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, func() {}) }()
	select {
	case <-s.Answers():
	case err := <-ended:
		t.Fatal(err)
	}
	if s.slowSync > 0 {
		t.Skipf("the disk is slow, and so are the ticks: %s for a sync", s.slowSync)
	}
	ticks := func(heartbeat, election time.Duration) {
		t.Helper()
		c := s.running.Load().Server.Cfg
		tick := time.Duration(c.TickMs) * time.Millisecond
		if tick != heartbeat || time.Duration(c.ElectionTicks)*tick != election {
			t.Errorf("a heartbeat each %s, an election after %d of them, want %s and %s", tick, c.ElectionTicks, heartbeat, election)
		}
	}
	client, err := Dial(o.Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := client.Put(ctx, "/a", "x"); err != nil {
		t.Fatal(err)
	}
	ticks(100*time.Millisecond, 500*time.Millisecond)
	if s.Open() {
		t.Error("a lone member is open")
	}
	written := writeWhile(t, o.Socket, func() {
		if err := s.OpenToPeers(ctx, peer); err != nil {
			t.Fatal(err)
		}
	})
	ticks(100*time.Millisecond, time.Second)
	if !s.Open() {
		t.Error("it is not open")
	}
	if got, err := client.Get(ctx, "/a"); err != nil || got.Count != 1 {
		t.Errorf("the client gets %v, %v", got, err)
	}
	if got, err := client.Get(ctx, "/written/", clientv3.WithPrefix(), clientv3.WithCountOnly()); err != nil || got.Count != written {
		t.Errorf("%d writes were acknowledged, and the client gets %v, %v", written, got, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// writeWhile writes with several clients, each with a watch, while do runs. No write may fail.
func writeWhile(t *testing.T, socket string, do func()) (written int64) {
	t.Helper()
	var writers sync.WaitGroup
	var acknowledged atomic.Int64
	done := make(chan struct{})
	for i := range 8 {
		client, err := Dial(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		client.Watch(t.Context(), "/written/", clientv3.WithPrefix())
		writers.Go(func() {
			for j := 0; ; j++ {
				select {
				case <-done:
					return
				default:
				}
				// As the API server does.
				_, err := client.Txn(t.Context()).Then(clientv3.OpPut(fmt.Sprintf("/written/%d/%d", i, j), "x")).Commit()
				if err != nil {
					t.Errorf("a write failed: %v", err)
					return
				}
				acknowledged.Add(1)
			}
		})
	}
	func() {
		defer writers.Wait()
		defer close(done)
		for acknowledged.Load() < 100 && !t.Failed() {
			time.Sleep(time.Millisecond)
		}
		do()
	}()
	return acknowledged.Load()
}
