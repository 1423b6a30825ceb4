// Package storage is the component "storage" of each node: it turns the storage plugins of the node into CSI drivers of
// its kubelet, with plugins/storage. For each plugin it
//   - listens on the driver's socket and forwards requests to the current process of the plugin.
//   - registers the driver with the kubelet (register.go), which writes the CSINode and the topology labels, when there
//     is a CSIDriver.
//   - runs the controllers of a node-local driver. The cluster runs those of the others, and creates the objects of
//     drivers (components/cluster/storagecontrollers).
package storage

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/stats"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/storage"
)

// Options configures the component. All fields without a stated default are required.
type Options struct {
	// Plugins are the plugins of this node.
	Plugins plugins.Set
	// Client calls the apiserver. Its identity has the rights of the sidecars for node-local drivers.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready. nil makes the
	// component read the API itself, when necessary.
	Informers func() informers.SharedInformerFactory
	// NodeName is the node's, KubeletRootDir its kubelet's directory.
	NodeName, KubeletRootDir string
	// Calls returns what sees the calls to a driver, with each message as a *mem.BufferSlice; nil: nothing does.
	Calls func(driver string) stats.Handler
	// Agent means that the API limits this node to volumes on itself.
	Agent bool
	// Log receives the component's own messages; the libraries write to klog.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts  Options
	swept atomic.Bool // the files of an earlier process are gone
	work  lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server {
	storage.KeepScheme()
	return &Server{opts: o}
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "storage" }

// Needs implements lifecycle.Component. The kubelet in turn needs this one: at the start it must not find the sockets
// of an earlier process, and at the stop its volumes still have their drivers.
func (s *Server) Needs() []string { return []string{"plugins", "apiserver"} }

// RestartPolicy implements lifecycle.Restarter. Two would provision for one claim.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Healthy implements lifecycle.Health: it fails when a change of plugins takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: a driver that does not start delays nothing.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	if !s.swept.Load() {
		if err := removeRegistrations(s.opts.KubeletRootDir); err != nil {
			return err
		}
		s.swept.Store(true)
	}
	clients, err := storage.NewClients(s.opts.Client)
	if err != nil {
		return err
	}
	ready()
	h := &host{Options: s.opts, clients: clients, work: &s.work}
	h.run(ctx)
	return nil
}

// host is one run of the component.
type host struct {
	Options
	clients storage.Clients
	work    *lifecycle.Watchdog
	life    <-chan struct{} // ends with the run

	once sync.Once
	own  informers.SharedInformerFactory
}

// run runs drivers until ctx ends.
func (h *host) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	h.life = ctx.Done()
	complaints := storage.NewComplaints(ctx, h.clients.Client, h.NodeName, h.Log)
	defer complaints.Close()
	defer func() {
		cancel()
		if h.own != nil {
			h.own.Shutdown()
		}
	}()
	drivers := storage.Drivers{
		Plugins:        h.Plugins,
		KubeletRootDir: h.KubeletRootDir,
		Serve:          h.serve,
		Gone:           h.gone,
		Fits:           func(driver string) error { return fits(h.KubeletRootDir, driver) },
		NodeUID:        h.uidOfNode,
		Complain:       complaints.Complain,
		Work:           h.work,
		Log:            h.Log,
	}
	drivers.Run(ctx)
}

// serve serves the driver's socket and follows its processes.
func (h *host) serve(ctx context.Context, d *storage.Driver) error {
	l, err := listen(storage.Socket(h.KubeletRootDir, d.Name()))
	if err != nil {
		return fmt.Errorf("serve the driver: %w", err)
	}
	var calls stats.Handler
	if h.Calls != nil {
		calls = h.Calls(d.Name())
	}
	server, served := storage.NewForwarder(d.Plugin, calls), make(chan struct{})
	go func() {
		defer close(served)
		serveGRPC(server, l, d.Log)
	}()
	defer func() { server.Stop(); <-served }()
	kubelet := &kubelet{root: h.KubeletRootDir, driver: d}
	defer kubelet.unregister()
	return d.Keep(ctx, func(ctx context.Context, now storage.Facts) (func(), error) {
		if err := h.awaitDriver(ctx, d.Declaration, now); err != nil {
			return nil, err
		}
		if err := kubelet.register(now.Info); err != nil {
			return nil, err
		}
		if !d.NodeLocal {
			return func() {}, nil // the cluster's controllers do it
		}
		return storage.Controllers{Clients: h.clients, Informers: h.factory(), Life: h.life, NodeName: h.NodeName}.Start(ctx, d, now)
	})
}

// gone removes a driver from the kubelet. The end of its process alone does not: volumes are in use.
func (h *host) gone(d *storage.Driver) {
	for _, socket := range []string{registrationSocket(h.KubeletRootDir, d.Name()), storage.Socket(h.KubeletRootDir, d.Name())} {
		if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.Log.Warnf("cannot remove a socket of the driver: %v", err)
		}
	}
	d.Log.Infof("the driver %s is removed: its volumes and objects stay", d.Name())
}

// uidOfNode distinguishes this node's Node from an earlier one of that name. It is empty without a Node: the kubelet
// registers after us.
func (h *host) uidOfNode(ctx context.Context) (types.UID, error) {
	node, err := h.clients.Client.CoreV1().Nodes().Get(ctx, h.NodeName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read Node %s: %w", h.NodeName, err)
	}
	return node.UID, nil
}

// factory returns the informers to build on, created on first use.
func (h *host) factory() informers.SharedInformerFactory {
	if h.Informers != nil {
		return h.Informers()
	}
	h.once.Do(func() {
		h.own = informers.NewSharedInformerFactoryWithOptions(h.clients.Client, 0, informers.WithTransform(sharedinformers.Trim))
	})
	return h.own
}
