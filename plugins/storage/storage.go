// Package storage makes storage plugins CSI drivers of the node: the component "storage".
//
//	kubelet --unix socket--> forwarder --go-plugin connection--> plugin
//	                             ^
//	controllers -----------------+     provision, delete, expand, attach, capacity
//
// A storage plugin serves csi.v1 on the connection that the host of plugins keeps. For each the component
//   - listens on <kubelet's root>/plugins/<driver>/csi.sock and forwards what comes, as it is, to the process that serves the
//     plugin now (forward.go). Processes come and go; the socket stays, so that the kubelet and the controllers notice no replacement.
//   - registers the driver with the kubelet (register.go), which writes the CSINode and the topology labels.
//   - creates the CSIDriver and the StorageClasses that the plugin declares (objects.go), on the server.
//   - runs what sidecars run for drivers in pods, with the sidecars' own libraries (controllers.go, provision.go, attach.go,
//     resize.go): on each node for drivers that are node-local, on the server for the others.
//
// It knows nothing of how plugins are started (plugins/host) and nothing of volumes. A CSI driver that
// runs in pods, with the usual sidecars, needs nothing of this and is not touched.
package storage

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	sharedinformers "kubelith.io/kubelith/components/informers"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/plugins"
)

// Options is what the component is made of.
type Options struct {
	// Plugins are the plugins of this node.
	Plugins plugins.Set
	// Client reaches the apiserver. Its identity has the rights of the sidecars.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready. nil makes the
	// component read the API itself, when there is something to read it for.
	Informers func() informers.SharedInformerFactory
	// NodeName is the node's, KubeletRootDir its kubelet's directory.
	NodeName, KubeletRootDir string
	// Central says that this node runs the controllers of drivers that are not node-local: one node of a cluster does.
	Central bool
	// Declared are node-local drivers whose plugins run on agents alone: this server makes their objects, as agents may not.
	Declared []Declared
	// Log receives the component's own messages; the libraries write to klog.
	Log logrus.FieldLogger
}

// Declared is what the plugin of a driver would declare.
type Declared struct {
	Driver  *storagev1.CSIDriver
	Classes []*storagev1.StorageClass
}

// Server is the component.
type Server struct {
	opts  Options
	swept atomic.Bool // what an earlier process left is gone
	work  lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server {
	addCoreOnce()
	return &Server{opts: o}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "storage" }

// Needs implements lifecycle.Component. The kubelet in turn needs this one: at the start it must not find the sockets of
// an earlier process, and at the stop its volumes still have their drivers.
func (s *Server) Needs() []string { return []string{"plugins", "apiserver"} }

// Healthy implements lifecycle.Health: a change of plugins does not take too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: a driver that does not come up keeps nothing from starting.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if !s.swept.Load() {
		if err := removeRegistrations(s.opts.KubeletRootDir); err != nil {
			return err
		}
		s.swept.Store(true)
	}
	client, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	snapshots, err := snapshotClient(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client of snapshots: %w", err)
	}
	h := &host{Options: s.opts, life: ctx.Done(), client: client, snapshots: snapshots, work: &s.work, drivers: map[string]*driver{}, said: map[string]string{}}
	h.events, h.stopEvents = newEvents(ctx, client, s.opts.NodeName)
	defer h.stopEvents()
	defer func() { cancel(); h.wait() }()
	ready()
	h.run(ctx)
	return nil
}

// run starts and ends drivers as plugins come and go, until ctx ends.
func (h *host) run(ctx context.Context) {
	changed := make(chan struct{}, 1)
	cancel := h.Plugins.Subscribe(plugins.Storage, func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer cancel()
	var making sync.WaitGroup
	defer making.Wait()
	for _, declared := range h.Declared {
		making.Go(func() { h.makeDeclared(ctx, declared) })
	}
	for {
		h.update(ctx)
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// wait returns when the drivers have ended, whose context is over.
func (h *host) wait() {
	for _, d := range h.drivers {
		<-d.ended
	}
	if h.own != nil {
		h.own.Shutdown()
	}
}

// update makes the drivers those of the plugins.
func (h *host) update(ctx context.Context) {
	defer h.work.Begin("a change of drivers")()
	wanted, names := map[string]*driver{}, sets.New[string]()
	for _, p := range h.Plugins.Plugins(plugins.Storage) {
		description := p.Description()
		if description == nil {
			continue // it has never run: it will say so, and its host says why not
		}
		declared, err := declarationOf(description)
		if err == nil {
			err = fits(h.KubeletRootDir, declared.driver.Name)
		}
		if err == nil && names.Has(declared.driver.Name) {
			err = fmt.Errorf("another plugin is the driver %s: remove one", declared.driver.Name)
		}
		if err != nil {
			if err.Error() != h.said[p.Name()] {
				h.complain(p.Name(), err)
			}
			h.said[p.Name()] = err.Error()
			continue
		}
		delete(h.said, p.Name())
		names.Insert(declared.driver.Name)
		wanted[p.Name()] = newDriver(h, p, declared)
	}
	for name, d := range h.drivers {
		if w := wanted[name]; w == nil || !d.same(w) {
			d.end(w == nil || w.declared.driver.Name != d.declared.driver.Name)
			delete(h.drivers, name)
		}
	}
	for name, w := range wanted {
		if d := h.drivers[name]; d != nil {
			d.wake()
			continue
		}
		h.drivers[name] = w
		w.start(ctx)
	}
}

// factory returns the informers to build on, made when they are first asked for.
func (h *host) factory() informers.SharedInformerFactory {
	if h.Informers != nil {
		return h.Informers()
	}
	h.once.Do(func() {
		h.own = informers.NewSharedInformerFactoryWithOptions(h.client, 0, informers.WithTransform(sharedinformers.Trim))
	})
	return h.own
}

// csiSocket is where a driver is found on the node.
func csiSocket(root, driver string) string { return filepath.Join(root, "plugins", driver, "csi.sock") }

// host is what the drivers of a running component share.
type host struct {
	Options
	life       <-chan struct{} // ends with the component
	client     kubernetes.Interface
	snapshots  snapshotInterface
	events     recorder
	stopEvents func()
	work       *lifecycle.Watchdog
	drivers    map[string]*driver // by plugin
	said       map[string]string  // of plugins that are none, why not

	once sync.Once
	own  informers.SharedInformerFactory
}
