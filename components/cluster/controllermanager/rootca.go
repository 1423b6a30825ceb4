package controllermanager

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/base/watchdir"
)

// rootCAControllers read the root CA's file once, when they are built: rootCA builds them again when it changes. The
// tokens controller is another one.
func rootCAControllers() []string {
	return []string{names.RootCACertificatePublisherController, names.KubeAPIServerClusterTrustBundlePublisherController}
}

const (
	// rootCASettle is how long the directory of the root CA must be quiet before it is read again, and rootCAEvery how
	// often it is read without a change.
	rootCASettle, rootCAEvery = 500 * time.Millisecond, time.Minute
	// rootCARetry is the time after a failure.
	rootCARetry = 5 * time.Second
)

// rootCA runs the controllers that publish the root CA, with the file as it is.
type rootCA struct {
	server *Server
	cc     app.ControllerContext
	first  []app.Controller // built with the others, so that an error ends the component
	read   []byte           // the file when they were built
	dir    string
}

var _ app.Controller = (*rootCA)(nil)

// newRootCA builds the controllers for the first time.
func (s *Server) newRootCA(ctx context.Context, cc app.ControllerContext, dir string) (*rootCA, error) {
	r := &rootCA{server: s, cc: cc, dir: dir}
	var err error
	r.first, r.read, err = r.build(ctx, cc, &s.checks)
	return r, err
}

// build reads the file before the controllers do: one that changes in between is seen as a change.
func (r *rootCA) build(ctx context.Context, cc app.ControllerContext, health app.HealthCheckAdder) ([]app.Controller, []byte, error) {
	text, err := os.ReadFile(r.file())
	if err != nil {
		return nil, nil, err
	}
	all, some := app.NewControllerDescriptors(), map[string]*app.ControllerDescriptor{}
	for _, name := range rootCAControllers() {
		some[name] = all[name]
	}
	controllers, err := app.BuildControllers(ctx, cc, some, nil, health)
	if err != nil {
		return nil, nil, fmt.Errorf("build controllers of the root CA: %w", err)
	}
	tokens, err := r.server.tokensController(ctx, cc)
	if err != nil {
		return nil, nil, err
	}
	return append(controllers, tokens), text, nil
}

func (r *rootCA) file() string { return r.cc.ComponentConfig.SAController.RootCAFile }

// Name implements app.Controller.
func (*rootCA) Name() string { return "root-ca" }

// Run implements app.Controller.
func (r *rootCA) Run(ctx context.Context) {
	log := r.server.opts.Log
	files := watchdir.New(watchdir.Options{Settle: rootCASettle, Poll: rootCAEvery, Log: log})
	defer files.Close()
	files.Add(r.dir)
	controllers, read, end := r.first, r.read, func() {}
	for {
		r.until(ctx, controllers, files.Changed(), read)
		end()
		for ctx.Err() == nil {
			// Handlers of the controllers are removed with their view.
			view := informers.NewView(r.server.opts.Informers())
			cc := r.cc
			cc.InformerFactory = view
			var err error
			if controllers, read, err = r.build(ctx, cc, &checks{}); err == nil {
				view.Start(ctx.Done())
				end = view.Close
				log.Info("publishing a changed root CA")
				break
			}
			view.Close()
			log.Warnf("cannot publish the changed root CA, retrying in %s: %v", rootCARetry, err)
			reconcile.Sleep(ctx, rootCARetry)
		}
		if ctx.Err() != nil {
			end()
			return
		}
	}
}

// until runs controllers until the file differs from what they have read.
func (r *rootCA) until(ctx context.Context, controllers []app.Controller, changed <-chan struct{}, read []byte) {
	running, stop := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer func() { stop(); all.Wait() }()
	for _, c := range controllers {
		all.Go(func() {
			defer utilruntime.HandleCrash()
			r.server.opts.Log.WithField("controller", c.Name()).Debug("Controller starting...") // as upstream for the others
			c.Run(running)
		})
	}
	tick := time.NewTicker(rootCAEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
		if text, err := os.ReadFile(r.file()); err == nil && !bytes.Equal(text, read) {
			return
		}
	}
}
