package etcdconn

import (
	"context"
	"net/url"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

// connections counts those that are open.
type connections struct{ open atomic.Int32 }

func (c *connections) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context   { return ctx }
func (c *connections) HandleRPC(context.Context, stats.RPCStats)                         {}
func (c *connections) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }
func (c *connections) HandleConn(_ context.Context, s stats.ConnStats) {
	switch s.(type) {
	case *stats.ConnBegin:
		c.open.Add(1)
	case *stats.ConnEnd:
		c.open.Add(-1)
	}
}

// startEtcd returns the address of an etcd, and how many connections it has.
func startEtcd(t *testing.T) (string, *connections) {
	t.Helper()
	dir, count := t.TempDir(), &connections{}
	unix := func(name string) []url.URL { return []url.URL{{Scheme: "unix", Path: filepath.Join(dir, name)}} }
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel = filepath.Join(dir, "data"), "error"
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls, cfg.ListenClientHttpUrls = unix("client"), unix("client"), unix("http")
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = unix("peer"), unix("peer")
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.GRPCAdditionalServerOptions = []grpc.ServerOption{grpc.StatsHandler(count)}
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	<-e.Server.ReadyNotify()
	return "unix://" + filepath.Join(dir, "client"), count
}

func (c *connections) want(t *testing.T, want int32) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); c.open.Load() != want; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("etcd has %d connections, want %d", c.open.Load(), want)
		}
	}
}

// TestShare uses upstream's variable: it fails if upstream has renamed it or changed its type.
func TestShare(t *testing.T) {
	address, count := startEtcd(t)
	config := storagebackend.TransportConfig{ServerList: []string{address}}
	Share()
	var clients []*kubernetes.Client
	for range 3 {
		c, err := newClient(config)
		if err != nil {
			t.Fatal(err)
		}
		clients = append(clients, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	watches := clients[2].Watch(ctx, "/x")
	if _, err := clients[0].Kubernetes.OptimisticPut(ctx, "/x", []byte("1"), 0, kubernetes.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := clients[1].Kubernetes.Get(ctx, "/x", kubernetes.GetOptions{}); err != nil || string(got.KV.Value) != "1" {
		t.Errorf("read %v, %v", got, err)
	}
	if _, err := clients[1].Grant(ctx, 60); err != nil {
		t.Error(err)
	}
	if r := <-watches; r.Err() != nil || len(r.Events) != 1 {
		t.Errorf("the watch got %v, %v", r.Events, r.Err())
	}
	count.want(t, 1)
	if got := clients[0].Endpoints(); len(got) != 1 || got[0] != address {
		t.Errorf("a client has the addresses %q, want %q: the compactor and health checks need them", got, address)
	}

	// The others go on after one is closed, also the first one.
	clients[0].Close()
	if _, err := clients[1].Kubernetes.Get(ctx, "/x", kubernetes.GetOptions{}); err != nil {
		t.Error(err)
	}
	clients[1].Close()
	clients[2].Close()
	count.want(t, 0)
	c, err := newClient(config) // again, after the last
	if err != nil {
		t.Fatal(err)
	}
	count.want(t, 1)
	c.Close()
	count.want(t, 0)
}
