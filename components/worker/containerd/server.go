// Package containerd runs the containerd daemon with its CRI service inside this process, as the component
// "containerd": it provides the sandboxes, containers and images of the kubelet's pods.
//
// *Containers* do not run in this process: runtime/tasks runs them with runc, below one keeper per pod, a program from
// runtime/payload that survives a restart. components/worker/cni does the network configuration, and runtime/images has
// the pause image.
//
// Everything here is wiring: containerd is upstream's, configured in config.go from the host and Options.
package containerd

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd/server"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/log"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/stats"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/runtime/payload"
	"kubelith.io/kubelith/runtime/tasks"
)

// Options configures the daemon. All paths are absolute.
type Options struct {
	Root          string   // persistent: images, snapshots, metadata
	State         string   // on a tmpfs: bundles, shim sockets, network namespaces; short, see preflight
	Socket        string   // serves CRI and containerd's own API; a second one, with ".ttrpc" appended, serves the shims
	BinDir        string   // the unpacked payload; PATH must find the shim there first, see Run
	CNIConfDir    string   // the directory whose first CNI configuration is used
	CNIBinDirs    []string // searched in this order
	RegistriesDir string   // <dir>/<host>/hosts.toml, containerd's format for registries and mirrors
	// DefaultRuntime starts the containers of pods without a RuntimeClass: of runtime/oci.
	DefaultRuntime string
	// Trial reports whether an earlier release may come back, see runtime/tasks.
	Trial func() bool
	Calls stats.Handler      // sees the calls to the gRPC server; nil: none
	Ended Ended              // gets to know what ended containers used; nil: nothing does
	Debug bool               // also log containerd's info and debug levels, not only its warnings
	Log   logrus.FieldLogger // also for containerd's own messages
}

// Server is the component. It runs once per process: containerd registers metrics globally.
type Server struct {
	opts    Options
	service criv1.RuntimeServiceServer // once the component is ready
}

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is touched before Run.
func New(opts Options) *Server { return &Server{opts: opts} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "containerd" }

// Needs implements lifecycle.Component: nothing.
func (s *Server) Needs() []string { return nil }

// stopGrace is how long upstream's Stop may take; it closes listeners and databases.
const stopGrace = 5 * time.Second

// Run serves until ctx is cancelled. Shims and containers go on running when it ends.
//
// PATH must begin with BinDir (the node sets it once, at start): when containerd finds its containers after a restart
// it looks up the shim by name, and deletes the containers of a shim that it cannot find.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.opts.preflight(); err != nil {
		return err
	}
	if err := s.checkPath(); err != nil {
		return err
	}
	fatal := make(chan string, 1)
	logger := containerdLogger(s.opts.Log, s.opts.Debug, fatal)
	// containerd logs through the logger in its context if there is one, otherwise through this variable.
	log.L = logger
	ctx = log.WithLogger(ctx, logger)

	if s.opts.Calls != nil {
		observeCalls(s.opts.Calls)
	}
	runTasks(tasksOptions(s.opts))
	s.keepService()
	if s.opts.Ended != nil {
		observeEnds(s.opts.Ended)
	}
	cfg := config(s.opts, detectHost(ctx, s.opts.Root, s.opts.Log))
	if err := server.CreateTopLevelDirectories(cfg); err != nil {
		return fmt.Errorf("create %s: %w", s.opts.Root, err)
	}
	if err := mount.SetTempMountLocation(filepath.Join(cfg.Root, "tmpmounts")); err != nil {
		return fmt.Errorf("create temporary mount location: %w", err)
	}
	warnings, err := mount.CleanupTempMounts(0)
	for _, w := range append(warnings, err) {
		if w != nil {
			s.opts.Log.WithError(w).Warn("clean up a temporary mount left by an earlier run")
		}
	}

	type result struct {
		srv *server.Server
		err error
	}
	started := make(chan result, 1)
	go func() { // not all of its plugins respect ctx
		restore := keepKlogFlags()
		// A shim whose loading is cut short counts as dead, and containerd kills its containers.
		loading, end := context.WithCancel(context.WithoutCancel(ctx))
		srv, err := server.New(loading, cfg)
		context.AfterFunc(ctx, end)
		restore()
		if err == nil {
			err = srv.Start(ctx)
		}
		if err == nil {
			srv.Wait() // until CRI has recovered its pods
		}
		started <- result{srv, err}
	}()
	var srv *server.Server
	select {
	case r := <-started:
		if r.err != nil {
			return r.err
		}
		srv = r.srv
	case msg := <-fatal:
		return errors.New(msg)
	case <-ctx.Done():
		return nil
	}
	ready()

	select {
	case msg := <-fatal:
		return errors.New(msg)
	case <-ctx.Done():
	}
	stopped := make(chan struct{})
	go func() {
		srv.Stop()
		close(stopped)
	}()
	select {
	case <-stopped:
	case <-time.After(stopGrace):
		s.opts.Log.Warnf("containerd did not stop within %s and ends with the process", stopGrace)
	}
	return nil
}

// observeCalls puts h where containerd would put OpenTelemetry's handler: it takes one from the plugin of that name,
// and has no option for another.
func observeCalls(h stats.Handler) {
	wrap(callsPlugin, func(*plugin.InitContext, any) (any, error) { return h, nil })
}

// runTasks puts runtime/tasks in front of upstream's runtime.
func runTasks(o tasks.Options) {
	wrap(runtimePlugin, func(ic *plugin.InitContext, other any) (any, error) {
		publisher, err := ic.GetSingle(plugins.EventPlugin) // upstream's runtime requires it, too
		if err != nil {
			return nil, err
		}
		return tasks.New(ic.Context, other.(runtime.PlatformRuntime), publisher.(events.Publisher), o)
	})
}

// wrap replaces what the plugin with this URI makes by what with returns for it. containerd's list of plugins is one
// per process.
func wrap(uri string, with func(ic *plugin.InitContext, upstream any) (any, error)) {
	registry.Graph(func(r *plugin.Registration) bool {
		if r.URI() == uri {
			makes := r.InitFn
			r.InitFn = func(ic *plugin.InitContext) (any, error) {
				upstream, err := makes(ic)
				if err != nil {
					return nil, err
				}
				return with(ic, upstream)
			}
		}
		return false
	})
}

// checkPath checks that containerd will find our shim.
func (s *Server) checkPath() error {
	want := filepath.Join(s.opts.BinDir, payload.Shim)
	got, err := exec.LookPath(payload.Shim)
	if err != nil {
		return fmt.Errorf("%s is not in PATH: %w", want, err)
	}
	if got != want {
		return fmt.Errorf("PATH finds %s instead of %s: %s must come first", got, want, s.opts.BinDir)
	}
	return nil
}
