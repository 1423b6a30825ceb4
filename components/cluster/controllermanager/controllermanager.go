// Package controllermanager runs kube-controller-manager's controllers: all that upstream enables by default, each with
// an in-process client that has its own identity (system:serviceaccount:kube-system:NAME), on the informers that the
// process shares.
//
// It is composed from upstream's exported parts instead of its Run, which creates clients from a kubeconfig and ends
// the process when a lease is lost.
package controllermanager

import (
	"context"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiwait "k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/informers"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/config"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
)

// Options configures the component.
type Options struct {
	// ClusterCIDRs and ServiceCIDRs have one CIDR per family, the primary first.
	ClusterCIDRs, ServiceCIDRs []string
	// PKI has the paths of the CA that signs, and of the service-account key.
	PKI *pki.Bundle
	// Args are "key=value" arguments named as kube-controller-manager's own flags.
	Args []string
	// Client gives each controller its identity.
	Client client.Identities
	// Informers returns the factory that the process shares; it is called when
	// the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// ClaimCSI returns upstream's package variables of CSI to the kubelet. The constructors of the volume controllers
	// set them. It is called in each run except the first, for which the kubelet waits, and again while it fails. It
	// may be nil.
	ClaimCSI func() error
	// Log receives the component's own messages; the controllers write to klog.
	Log logrus.FieldLogger
}

// Server is the controller-manager component.
type Server struct {
	opts   Options
	config config.Config
	checks checks
	built  atomic.Bool // the volume controllers were built in an earlier run
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New checks the options against upstream's flags; nothing is started.
func New(o Options) (*Server, error) {
	c, err := upstreamConfig(o)
	if err != nil {
		return nil, err
	}
	return &Server{opts: o, config: *c}, nil
}

// Upstream returns the configuration that upstream's controllers are built from.
func (s *Server) Upstream() *config.Config { return &s.config }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "controller-manager" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter. Two would each act on what they have counted.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Standby records that the kubelet may have started before the first run (components/controlplane/election).
func (s *Server) Standby() { s.built.Store(true) }

// startJitter spreads the start of the controllers, as upstream's Run does
// (times the start interval, which is 0 by default).
const startJitter = 1.0

// shutdownTimeout is how long controllers may take to stop.
const shutdownTimeout = 5 * time.Second

// volumeControllers are those whose constructors initialise the CSI volume plugin. It keeps process-wide state, which
// the kubelet must initialise after them (pkg/volume/csi: nim, PluginHandler).
var volumeControllers = []string{
	names.PersistentVolumeAttachDetachController,
	names.PersistentVolumeBinderController,
	names.PersistentVolumeExpanderController,
	names.SELinuxWarningController,
}

// Run implements lifecycle.Component. It is ready, and the kubelet may start,
// as soon as the volume controllers are built.
func (s *Server) Run(ctx context.Context, ready func()) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cc, end, err := s.controllerContext(ctx)
	if err != nil {
		return err
	}
	defer func() { cancel(); end() }()
	s.checks.reset()
	descriptors := app.NewControllerDescriptors()
	// Its constructor has no client builder and is not exported: see tokens.go.
	delete(descriptors, names.ServiceAccountTokenController)
	for _, name := range rootCAControllers() { // see rootca.go
		delete(descriptors, name)
	}
	volumes := map[string]*app.ControllerDescriptor{}
	for _, name := range volumeControllers {
		volumes[name] = descriptors[name]
		delete(descriptors, name)
	}
	controllers, err := app.BuildControllers(ctx, cc.ControllerContext, volumes, nil, &s.checks)
	if err != nil {
		return fmt.Errorf("build volume controllers: %w", err)
	}
	if s.built.Swap(true) && s.opts.ClaimCSI != nil {
		wait := s.claimCSI(ctx)
		defer func() { cancel(); wait() }()
	}
	ready()
	others, err := app.BuildControllers(ctx, cc.ControllerContext, descriptors, nil, &s.checks)
	if err != nil && ctx.Err() != nil {
		return nil // upstream returns this when it was asked to stop meanwhile
	}
	if err != nil {
		return fmt.Errorf("build controllers: %w", err)
	}
	controllers = append(controllers, others...)
	root, err := s.newRootCA(ctx, cc.ControllerContext, filepath.Dir(s.opts.PKI.ClusterTrust))
	if err != nil {
		return err
	}
	controllers = append(controllers, root)

	cc.InformerFactory.Start(ctx.Done())
	cc.ObjectOrMetadataInformerFactory.Start(ctx.Done())
	close(cc.InformersStarted)
	var running sync.WaitGroup
	if !app.RunControllers(ctx, cc.ControllerContext, owned(controllers, &running), startJitter, shutdownTimeout) {
		s.opts.Log.Warnf("some controllers did not stop within %s", shutdownTimeout)
		if lifecycle.Restarting(ctx) {
			running.Wait() // each controller runs once
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("all controllers ended")
	}
	return nil
}

// claimRetry is the time between two tries.
const claimRetry = time.Second

// claimCSI tries once and, while that fails, again until ctx ends: the Node may be missing. The returned function waits
// for the last try.
func (s *Server) claimCSI(ctx context.Context) (wait func()) {
	var running sync.WaitGroup
	if err := s.opts.ClaimCSI(); err != nil {
		s.opts.Log.Warnf("CSI drivers cannot register on this node, retrying in %s: %v", claimRetry, err)
		running.Go(func() {
			defer utilruntime.HandleCrash()
			// The error is ctx's.
			_ = apiwait.PollUntilContextCancel(ctx, claimRetry, false, func(context.Context) (bool, error) { return s.opts.ClaimCSI() == nil, nil })
		})
	}
	return running.Wait
}

// owned wraps the controllers so that running waits for their goroutines, and a panic in one ends the component and not
// the process.
func owned(controllers []app.Controller, running *sync.WaitGroup) []app.Controller {
	out := make([]app.Controller, 0, len(controllers))
	for _, c := range controllers {
		running.Add(1)
		out = append(out, ownedController{c, running})
	}
	return out
}

type ownedController struct {
	app.Controller
	running *sync.WaitGroup
}

func (c ownedController) Run(ctx context.Context) {
	defer c.running.Done()
	defer utilruntime.HandleCrash()
	c.Controller.Run(ctx)
}

// Healthy implements lifecycle.Health: no controller reports a failure. A worker that hangs reports none, here as
// upstream.
func (s *Server) Healthy(ctx context.Context) error { return s.checks.healthy(ctx) }

// checks are upstream's health checks of the controllers of one run; almost all of them always pass.
type checks struct {
	mu  sync.Mutex
	all []healthz.HealthChecker
}

// AddHealthChecker implements app.HealthCheckAdder.
func (c *checks) AddHealthChecker(more ...healthz.HealthChecker) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, more...)
}

func (c *checks) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = nil
}

func (c *checks) healthy(ctx context.Context) error {
	c.mu.Lock()
	all := slices.Clone(c.all)
	c.mu.Unlock()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "/healthz", nil)
	if err != nil {
		return err
	}
	for _, check := range all {
		if err := check.Check(request); err != nil {
			return fmt.Errorf("%s: %w", check.Name(), err)
		}
	}
	return nil
}
