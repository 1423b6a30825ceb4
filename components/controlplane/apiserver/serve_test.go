package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/util/compatibility"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	basecompatibility "k8s.io/component-base/compatibility"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/etcd"
	"kubelith.io/kubelith/trace/record"
)

// panics is a path that the tests add to the real apiserver's.
const panics = "/test-panic"

// process is an etcd and an apiserver in the process of the test, for all tests of the package.
type process struct {
	client   *client.InProcess
	server   *Server
	core     *genericapiserver.GenericAPIServer // kube-apiserver's part
	pki      *pki.Bundle
	url      string
	recorded *record.Store
	undo     []func() // the last one first
}

var shared struct {
	sync.Once
	process
	err error
}

func TestMain(m *testing.M) {
	code := m.Run()
	for i := len(shared.undo) - 1; i >= 0; i-- {
		shared.undo[i]()
	}
	os.Exit(code)
}

// serve starts the apiserver once and returns the in-process client of it.
func serve(t *testing.T) *client.InProcess {
	t.Helper()
	shared.Do(func() { shared.err = shared.start() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.client
}

func (p *process) start() error {
	dir, err := os.MkdirTemp("", "ka") // a short path: sockets have a limit of 108 characters
	if err != nil {
		return err
	}
	p.undo = append(p.undo, func() { os.RemoveAll(dir) })
	log, err := logging.Setup(logging.Options{Format: "text", Level: "error", Out: os.Stderr})
	if err != nil {
		return err
	}
	if err := defaultGates(); err != nil {
		return err
	}
	bundle, err := pki.Ensure(pki.Options{
		Dir: filepath.Join(dir, "pki"), NodeName: "test", NodeIPs: []net.IP{net.IPv4(127, 0, 0, 1)},
		ServiceIPs: []net.IP{net.IPv4(10, 43, 0, 1)}, ClusterDomain: "cluster.local",
	})
	if err != nil {
		return err
	}
	encryption, socket := filepath.Join(dir, "encryption.yaml"), filepath.Join(dir, "etcd.sock")
	if err := pki.EnsureEncryption(encryption, false); err != nil {
		return err
	}
	port, err := freePort()
	if err != nil {
		return err
	}
	store, err := etcd.New(etcd.Options{DataDir: filepath.Join(dir, "db"), Socket: socket, Name: "default", Zap: logging.Zap(logrus.NewEntry(log))})
	if err != nil {
		return err
	}
	if err := p.run(store.Run); err != nil {
		return fmt.Errorf("etcd: %w", err)
	}
	p.pki, p.url = bundle, fmt.Sprintf("https://127.0.0.1:%d", port)
	p.client = client.New(p.url, log)
	p.recorded = record.NewStore(record.Options{})
	p.server, err = New(Options{
		BindAddress: "127.0.0.1", Port: port, AdvertiseAddress: "192.0.2.1", ServiceCIDRs: []string{"10.43.0.0/16"}, ClusterDomain: "cluster.local",
		EtcdEndpoint: etcd.Endpoint(socket), EncryptionConfig: encryption, PKI: bundle, Client: p.client, Log: log, Extend: testExtension(), Plugins: &reviewers, Record: p.recorded,
		// The test has no controller-manager that creates service accounts.
		Args: []string{"disable-admission-plugins=ServiceAccount"},
	})
	if err != nil {
		return err
	}
	return p.run(p.serveWithPanic)
}

// serveWithPanic is Server.Run with one path more, whose handler panics below all filters of the apiserver.
func (p *process) serveWithPanic(ctx context.Context, ready func()) error {
	chain, documents, err := p.server.build(ctx)
	if err != nil {
		return err
	}
	if p.core, err = coreOf(chain); err != nil {
		return err
	}
	chain.GenericAPIServer.Handler.NonGoRestfulMux.HandlePrefix(panics+"/", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == panics+"/late" {
			w.Write([]byte("part"))
			w.(http.Flusher).Flush()
		}
		panic("the test's own panic")
	}))
	chain.GenericAPIServer.Handler.NonGoRestfulMux.Handle(reviews, http.HandlerFunc(review))
	prepared, err := chain.PrepareRun()
	if err != nil {
		return err
	}
	documents.forget()
	p.client.Open(chain.GenericAPIServer.Handler)
	defer p.client.Close()
	own, err := kubernetes.NewForConfig(p.client.Config(client.APIServer))
	if err != nil {
		return err
	}
	go p.server.announceReady(ctx, own, ready)
	return prepared.Run(ctx)
}

// run starts a component and waits until it is ready.
func (p *process) run(component func(context.Context, func()) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = component(ctx, func() { close(ready) })
	}()
	p.undo = append(p.undo, func() {
		cancel()
		<-ended
	})
	select {
	case <-ready:
		return nil
	case <-ended:
		return errors.Join(errors.New("ended before it was ready"), err)
	}
}

// defaultGates sets the process's feature gates to their defaults, which must happen once.
func defaultGates() error {
	registry := compatibility.DefaultComponentGlobalsRegistry
	if registry.EffectiveVersionFor(basecompatibility.DefaultKubeComponent) == nil {
		if err := registry.Register(basecompatibility.DefaultKubeComponent, compatibility.DefaultBuildEffectiveVersion(), utilfeature.DefaultMutableFeatureGate); err != nil {
			return err
		}
	}
	registry.AddFlags(pflag.NewFlagSet("process", pflag.ContinueOnError))
	return registry.Set()
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

func clientFor(t *testing.T, cfg *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
