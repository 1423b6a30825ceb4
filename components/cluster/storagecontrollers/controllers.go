// Package storagecontrollers is the component "storage-controllers": what a cluster runs once for the storage plugins
// that its nodes turn into CSI drivers (components/worker/storage). It
//   - creates the CSIDriver and the StorageClasses that a plugin declares (objects.go).
//   - runs the controllers of drivers that are not node-local, from plugins/storage.
//
// It queries drivers, and creates volumes, through the sockets that the component "storage" serves on this server:
// configure a plugin for the cluster on each server.
package storagecontrollers

import (
	"context"
	"errors"
	"sync"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/storage"
)

// Options configures the component.
type Options struct {
	// Plugins are the plugins of this server.
	Plugins plugins.Set
	// Client calls the apiserver. Its identity has the rights of the sidecars, and creates CSIDrivers and
	// StorageClasses.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// NodeName is this server's, KubeletRootDir the directory with the sockets of its drivers.
	NodeName, KubeletRootDir string
	// Declared are drivers whose plugins run on agents only; none by default.
	Declared []storage.Declaration
	// Log receives the component's own messages; the libraries write to klog.
	Log logrus.FieldLogger
}

// Controllers is the component.
type Controllers struct {
	opts Options
	work lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Controllers)(nil)
	_ lifecycle.Health    = (*Controllers)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Controllers {
	storage.KeepScheme()
	return &Controllers{opts: o}
}

// Name implements lifecycle.Component.
func (c *Controllers) Name() string { return "storage-controllers" }

// Needs implements lifecycle.Component.
func (c *Controllers) Needs() []string { return []string{"plugins", "apiserver", "storage"} }

// RestartPolicy implements lifecycle.Restarter. Two would provision for one claim.
func (*Controllers) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Healthy implements lifecycle.Health: a change of plugins does not take too long.
func (c *Controllers) Healthy(ctx context.Context) error { return c.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready at once: a driver that does not come up keeps nothing from starting.
func (c *Controllers) Run(ctx context.Context, ready func()) error {
	c.work.Reset()
	clients, err := storage.NewClients(c.opts.Client)
	if err != nil {
		return err
	}
	ready()
	t := &term{Options: c.opts, clients: clients, work: &c.work}
	t.run(ctx)
	return nil
}

// term is one run of the component.
type term struct {
	Options
	clients storage.Clients
	work    *lifecycle.Watchdog
}

// run serves drivers until ctx ends. Everything that it started has ended then.
func (t *term) run(ctx context.Context) {
	complaints := storage.NewComplaints(ctx, t.clients.Client, t.NodeName, t.Log)
	defer complaints.Close()
	var declared sync.WaitGroup
	defer declared.Wait()
	for _, d := range t.Declared {
		declared.Go(func() { t.makeDeclared(ctx, d) })
	}
	drivers := storage.Drivers{
		Plugins:        t.Plugins,
		KubeletRootDir: t.KubeletRootDir,
		Serve:          t.serve,
		Complain: func(plugin string, err error) {
			// Each server reports this, and other errors, for its own plugin.
			if foreign := (*storage.ForeignError)(nil); !errors.As(err, &foreign) {
				complaints.Complain(plugin, err)
			}
		},
		Quiet: true,
		Work:  t.work,
		Log:   t.Log,
	}
	drivers.Run(ctx)
}

// serve creates the objects of a driver and runs its controllers, until ctx ends.
func (t *term) serve(ctx context.Context, d *storage.Driver) error {
	return d.Keep(ctx, func(ctx context.Context, now storage.Facts) (func(), error) {
		if err := t.objects(d.Log).make(ctx, d.Declaration, now); err != nil {
			return nil, err
		}
		if d.NodeLocal {
			return func() {}, nil // each node runs them, for itself
		}
		// The informers are shared by the process.
		return storage.Controllers{Clients: t.clients, Informers: t.Informers(), Life: ctx.Done(), NodeName: t.NodeName}.Start(ctx, d, now)
	})
}
