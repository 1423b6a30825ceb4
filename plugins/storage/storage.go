// Package storage makes storage plugins CSI drivers. It is what two components share: "storage" of each node
// (components/worker/storage) and "storage-controllers" of the cluster (components/cluster/storagecontrollers).
//
//	kubelet --unix socket--> forwarder --go-plugin connection--> plugin
//	                             ^
//	controllers -----------------+     provision, delete, expand, attach, capacity
//
// A storage plugin serves csi.v1 on the connection that the host of plugins keeps. For each there is
//   - a forwarder (forward.go) behind a unix socket of the node. It forwards each call, unchanged, to the process that
//     serves the plugin now. Processes come and go; the socket stays, so that the kubelet and the controllers notice
//     no replacement.
//   - a Driver (driver.go), which keeps up with what the plugin declares and what its processes say of themselves.
//   - Controllers (controllers.go, provision.go, attach.go, resize.go): what sidecars run for drivers in pods, with the
//     sidecars' own libraries.
//
// It knows nothing of how plugins are started (plugins/host) and nothing of volumes. A CSI driver that runs in pods,
// with the usual sidecars, needs nothing of this and is not touched.
package storage

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/plugins"
)

// Socket is where a driver is found on the node whose kubelet has this directory.
func Socket(root, driver string) string { return filepath.Join(root, "plugins", driver, "csi.sock") }

// Drivers keeps one Driver for each storage plugin of this node. All fields without a stated default are required.
type Drivers struct {
	// Plugins are the plugins of this node, KubeletRootDir is its kubelet's directory.
	Plugins        plugins.Set
	KubeletRootDir string
	// Serve runs a driver until ctx ends. It is called again a little after it has returned before.
	Serve func(ctx context.Context, d *Driver) error
	// Gone is called when a driver has ended because its plugin is gone, or another driver now; may be nil.
	Gone func(d *Driver)
	// Fits refuses a driver by its name; nil: none.
	Fits func(driver string) error
	// NodeUID returns the UID of this node's Node, empty without one, for the Facts of node-local drivers; nil: they
	// are without it.
	NodeUID func(context.Context) (types.UID, error)
	// Complain is called when something is wrong with a plugin, once for each error.
	Complain func(plugin string, err error)
	// Quiet leaves a plugin's own errors to others: those of its declaration, and of its answers.
	Quiet bool
	// Work is begun and ended with each change of plugins.
	Work *lifecycle.Watchdog
	// Log receives what happens to drivers.
	Log logrus.FieldLogger

	drivers map[string]*Driver // by plugin
	said    logging.Once       // of plugins that are no driver, why not
}

// Run starts and ends drivers as plugins come and go. When ctx has ended it waits for them.
func (s *Drivers) Run(ctx context.Context) {
	s.drivers, s.said = map[string]*Driver{}, logging.Once{}
	changed := reconcile.NewSignal()
	defer s.Plugins.Subscribe(plugins.Storage, changed.Send)()
	for {
		s.update(ctx)
		select {
		case <-changed:
			continue
		case <-ctx.Done():
		}
		for _, d := range s.drivers {
			<-d.ended
		}
		return
	}
}

// update makes the drivers those of the plugins.
func (s *Drivers) update(ctx context.Context) {
	defer s.Work.Begin("updating the drivers")()
	wanted, names := map[string]*Driver{}, sets.New[string]()
	for _, p := range s.Plugins.Plugins(plugins.Storage) {
		description := p.Description()
		if description == nil {
			continue // it has never run: its start will be a change, and its host reports why it does not run
		}
		declared, err := declarationOf(description)
		if err == nil && s.Fits != nil {
			err = s.Fits(declared.Driver.Name)
		}
		if err == nil && names.Has(declared.Driver.Name) {
			err = fmt.Errorf("another plugin serves the driver %s: remove one", declared.Driver.Name)
		}
		if err != nil {
			if s.said.News(p.Name(), err.Error()) && !s.Quiet {
				s.Complain(p.Name(), err)
			}
			continue
		}
		s.said.News(p.Name(), "")
		names.Insert(declared.Driver.Name)
		wanted[p.Name()] = newDriver(s, p, declared)
	}
	for name, d := range s.drivers {
		if w := wanted[name]; w == nil || !d.same(w) {
			d.end()
			if s.Gone != nil && (w == nil || w.Name() != d.Name()) {
				s.Gone(d)
			}
			delete(s.drivers, name)
		}
	}
	for name, w := range wanted {
		if d := s.drivers[name]; d != nil {
			d.wake()
			continue
		}
		s.drivers[name] = w
		w.start(ctx)
	}
}
