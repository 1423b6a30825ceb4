package etcdconn

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/kubernetes/scheme"
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
	// The compactor and health checks use these.
	if got := clients[0].Endpoints(); len(got) != 1 || got[0] != address {
		t.Errorf("a client has the addresses %q, want %q", got, address)
	}
	if _, err := clients[0].Status(ctx, address); err != nil {
		t.Error(err)
	}
	count.want(t, 1) // Status has closed its own

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

// TestStorage makes storages as the API server does.
func TestStorage(t *testing.T) {
	address, count := startEtcd(t)
	Share()
	config := storagebackend.NewDefaultConfig("/registry", scheme.Codecs.LegacyCodec(corev1.SchemeGroupVersion))
	config.Transport.ServerList = []string{address}
	for _, resource := range []string{"pods", "secrets", "events"} {
		_, destroy, err := factory.Create(*config.ForResource(schema.GroupResource{Resource: resource}),
			func() runtime.Object { return &corev1.Pod{} }, func() runtime.Object { return &corev1.PodList{} }, "/"+resource)
		if err != nil {
			t.Fatal(err)
		}
		defer destroy()
	}
	count.want(t, 1)
}

// TestFailure: clients that wait for a connection that cannot be made get its error, and the next one tries again.
func TestFailure(t *testing.T) {
	down, attempts := make(chan struct{}), atomic.Int32{}
	p := &pool{connections: map[string]*connection{}, upstream: func(storagebackend.TransportConfig) (*kubernetes.Client, error) {
		attempts.Add(1)
		<-down
		return nil, errors.New("etcd is away")
	}}
	config := storagebackend.TransportConfig{ServerList: []string{"unix:///none"}}
	var waiting sync.WaitGroup
	for range 5 {
		waiting.Go(func() {
			if _, err := p.client(config); err == nil || err.Error() != "etcd is away" {
				t.Errorf("got %v", err)
			}
		})
	}
	for users := 0; users < 5; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		if c := p.connections["unix:///none"]; c != nil {
			users = c.users
		}
		p.mu.Unlock()
	}
	close(down)
	waiting.Wait()
	if _, err := p.client(config); err == nil || attempts.Load() != 2 || len(p.connections) != 0 {
		t.Errorf("%v after %d attempts, %d connections are kept", err, attempts.Load(), len(p.connections))
	}
	// An etcd with certificates is not the process's own.
	config.CertFile = "client.crt"
	if _, err := p.client(config); err == nil || attempts.Load() != 3 || len(p.connections) != 0 {
		t.Errorf("with a certificate: %v after %d attempts", err, attempts.Load())
	}
}
