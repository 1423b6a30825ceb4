// Package kubelet runs the kubelet in the process, with the given clients of the node's own identity
// (system:node:NAME): in-process ones on a server, components/worker/join's on an agent.
//
// It is upstream's kubelet, started through the exported app.Run with typed options. Upstream's client certificates and
// their rotation are not used: a server needs none, and upstream's rotation closes all connections. The serving
// certificate is given on a server, and requested on an agent (serving.go).
//
// Upstream ends the process with os.Exit on a dozen conditions. Those that a user can cause are checked before anything
// is started: the ports and the cgroups by host/preflight, the files that flags name by New.
//
// Upstream creates the CRI clients from the endpoint in setConfig. With our patch kubelet-runtime it keeps a container
// runtime that it is given (docs/adr/073-cri-by-calls.md); without, it replaces that by its own. To see the calls,
// components/worker/containerd takes a handler.
package kubelet

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"go.opentelemetry.io/otel/trace"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	internalapi "k8s.io/cri-api/pkg/apis"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"
	"k8s.io/kubernetes/pkg/kubelet/nodeshutdown/systemd"
	"k8s.io/kubernetes/pkg/volume"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/base/renewal"
)

// Options configures the node.
type Options struct {
	// RootDir holds pods' volumes and the plugin sockets.
	RootDir string
	// StaticPodDir has manifests of static pods; it is created when missing.
	StaticPodDir string
	NodeName     string
	NodeIPs      []net.IP
	// ExternalIPs: the Node has others too. The kubelet leaves all of them to components/cluster/approver, which is to
	// it a cloud provider outside of the process.
	ExternalIPs bool
	// Labels ("key=value") and Taints ("key[=value]:effect") are set on the Node when it registers.
	Labels, Taints []string
	ClusterDNS     []net.IP
	ClusterDomain  string
	// CRISocket is the path of the CRI's unix socket.
	CRISocket string
	// CgroupDriver is cgroupfs or systemd; the CRI's answer takes precedence.
	CgroupDriver string
	// ResolvConf is the file for pods with dnsPolicy Default.
	ResolvConf string
	// ClientCA is the path of the CA certificate for the kubelet's clients.
	ClientCA string
	// Serving is the kubelet's own certificate. Without it the kubelet requests one from the API, for the node's
	// addresses, renews it, and keeps it in CertDir.
	Serving pki.Pair
	CertDir string
	// ShutdownGrace is how long pods may take to end, in order, when the machine shuts down; zero: the shutdown does
	// not wait for them.
	ShutdownGrace time.Duration
	// AfterControllerManager is for a process that also runs the controller-manager. The controller-manager starts
	// first, because its controllers' constructors and the kubelet set the same package variables of pkg/volume/csi:
	// the last one wins, and it must be the one that knows the node's name.
	AfterControllerManager bool
	// KeepRegistered creates the Node object again when it is deleted.
	KeepRegistered bool
	// Disconnect is called after a heartbeat that failed again, to close silent connections; nil: Client is in-process
	// and has none.
	Disconnect func()
	// Trace returns the kubelet's TracerProvider, given the one from its own configuration; nil: it has that one.
	Trace func(trace.TracerProvider) trace.TracerProvider
	// Runtime returns the kubelet's container runtime, given one that calls it over CRISocket; nil: it has that one.
	Runtime func(socket internalapi.RuntimeService) internalapi.RuntimeService
	// Volumes returns the kubelet's volume plugins, given upstream's; nil: it has these.
	Volumes func([]volume.VolumePlugin) []volume.VolumePlugin
	// Args are "key=value" arguments named as the kubelet's own flags.
	Args []string
	// Client acts as the node.
	Client *rest.Config
	// Log receives the component's own messages; upstream's kubelet writes to klog.
	Log logrus.FieldLogger
}

// requestsServing reports whether the kubelet requests its serving certificate.
func (o Options) requestsServing() bool { return o.Serving == pki.Pair{} }

// inProcess reports whether the apiserver is in this process.
func (o Options) inProcess() bool { return o.Disconnect == nil }

// Server is the kubelet component.
type Server struct {
	opts     Options
	upstream *options.KubeletServer
	serving  atomic.Pointer[renewal.Manager] // the serving certificate that it requests; nil: before Run, or it has one
}

var _ lifecycle.Component = (*Server)(nil)

// New checks the options against upstream's flags; nothing is started.
func New(o Options) (*Server, error) {
	up, err := upstreamServer(o)
	if err != nil {
		return nil, err
	}
	return &Server{opts: o, upstream: up}, nil
}

// Upstream returns the options that upstream's kubelet is started with.
func (s *Server) Upstream() *options.KubeletServer { return s.upstream }

// Ports implements lifecycle.Listener.
func (s *Server) Ports() []lifecycle.Port {
	up := s.upstream
	return slices.DeleteFunc([]lifecycle.Port{
		{Network: "tcp", Address: up.Address, Number: int(up.Port), Setting: "--kubelet-arg=port=N"},
		{Network: "tcp", Address: up.HealthzBindAddress, Number: int(up.HealthzPort), Setting: "--kubelet-arg=healthz-port=N"},
		{Network: "tcp", Address: up.Address, Number: int(up.ReadOnlyPort), Setting: "--kubelet-arg=read-only-port=N"},
	}, func(p lifecycle.Port) bool { return p.Number == 0 })
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "kubelet" }

// Needs implements lifecycle.Component. Storage removes what the kubelet must not find and, at the stop, serves its
// volumes longer.
func (s *Server) Needs() []string {
	needs := []string{"apiserver", "containerd", "images", "storage"}
	if s.opts.AfterControllerManager {
		needs = append(needs, "controller-manager")
	}
	return needs
}

// StartsAfter implements lifecycle.Early. Half of a kubelet's start, up to its volume plugins, needs the container
// runtime only. On an agent it would request its certificate then.
func (s *Server) StartsAfter() []string {
	if s.opts.requestsServing() {
		return s.Needs()
	}
	return []string{"containerd"}
}

// Run implements lifecycle.Component. It is ready when the kubelet's own health endpoint answers ok, and the kubelet
// has the serving certificate that it requests.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(s.opts.RootDir, 0o750); err != nil {
		return fmt.Errorf("cannot create its directory: mount it writable or use another --kubelet-root-dir: %w", err)
	}
	if err := os.MkdirAll(s.opts.StaticPodDir, 0o755); err != nil {
		return fmt.Errorf("cannot create the directory of static pods: mount it writable or use another --data-dir: %w", err)
	}
	deps, err := s.dependencies(ctx)
	if ctx.Err() != nil {
		return nil // asked to stop, as below
	}
	if err != nil {
		return err
	}
	if s.opts.requestsServing() {
		end, err := s.requestServing(ctx, deps)
		if err != nil {
			return err
		}
		defer end()
	}
	waiting, stop := context.WithCancel(ctx)
	var beside sync.WaitGroup
	defer func() { stop(); beside.Wait() }()
	beside.Go(func() { s.awaitReady(waiting, ready) })
	if s.opts.KeepRegistered {
		beside.Go(func() { s.keepRegistered(waiting, deps.KubeClient) })
	}
	if s.endsPods() {
		beside.Go(func() {
			s.holdShutdowns(waiting, deps.KubeClient, func() (logind, error) { return systemd.NewDBusCon() })
		})
	}
	if err := s.runUpstream(ctx, deps); ctx.Err() == nil {
		return err
	}
	return nil // asked to stop: its work in progress fails then, which is no failure
}

// heartbeatTimeout is how long a write of the Node's status or its lease may take. Upstream's limit, the lesser of the
// lease's duration and the status frequency, ends a heartbeat on a dead connection. An in-process client has no
// connection: a slow heartbeat waits for the disk, and ending it only adds a write. The lease's duration remains as the
// limit.
func (s *Server) heartbeatTimeout() time.Duration {
	lease := time.Duration(s.upstream.NodeLeaseDurationSeconds) * time.Second
	if s.opts.Disconnect == nil {
		return lease
	}
	return min(s.upstream.NodeStatusUpdateFrequency.Duration, lease)
}

// dependencies are upstream's own, with our clients.
func (s *Server) dependencies(ctx context.Context) (*kubelet.Dependencies, error) {
	// cAdvisor reads the names of containers from containerd; its only setting for that is a flag of the process.
	if err := flag.Set("containerd", s.opts.CRISocket); err != nil {
		return nil, err
	}
	deps, err := app.UnsecuredDependencies(ctx, s.upstream, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	client := late(ctx, s.opts.Client)
	cs, err := kubernetes.NewForConfig(client)
	if err != nil {
		return nil, err
	}
	heartbeat := rest.CopyConfig(client)
	heartbeat.Timeout = s.heartbeatTimeout()
	if deps.HeartbeatClient, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return nil, err
	}
	events := rest.CopyConfig(client)
	if events.QPS = float32(s.upstream.EventRecordQPS); events.QPS == 0 {
		events.QPS = -1
	}
	events.Burst = int(s.upstream.EventBurst)
	eventClient, err := kubernetes.NewForConfig(events)
	if err != nil {
		return nil, err
	}
	deps.KubeClient, deps.EventClient = cs, eventClient.CoreV1()
	if s.opts.Trace != nil {
		deps.TracerProvider = s.opts.Trace(deps.TracerProvider)
	}
	if s.opts.Runtime != nil {
		// app.Run does the same, and keeps what is there already.
		if err := kubelet.PreInitRuntimeService(ctx, &s.upstream.KubeletConfiguration, deps); err != nil {
			return nil, err
		}
		deps.RemoteRuntimeService = s.opts.Runtime(deps.RemoteRuntimeService)
	}
	if s.opts.Volumes != nil {
		deps.VolumePlugins = s.opts.Volumes(deps.VolumePlugins)
	}
	deps.OnHeartbeatFailure = s.opts.Disconnect
	return deps, nil
}

// runUpstream runs the kubelet until ctx ends or it fails.
func (s *Server) runUpstream(ctx context.Context, deps *kubelet.Dependencies) error {
	prober := &lateProber{DynamicPluginProber: deps.DynamicPluginProber, await: func() error { return lifecycle.AwaitNeeds(ctx) }}
	deps.DynamicPluginProber = prober
	defer func() {
		if prober.left { // else the panic is another one's
			_ = recover()
		}
	}()
	return app.Run(ctx, s.upstream, deps, utilfeature.DefaultFeatureGate)
}

// lateProber keeps the kubelet from its volume plugins, which it initialises after the prober, until all that it needs
// is ready. Before, it has connected to the container runtime and looked at the machine, and its informers wait in
// their first request. What follows uses the API, and CSI's package variables (see AfterControllerManager).
//
// Source: k8s.io/kubernetes/pkg/volume/plugins.go, VolumePluginMgr.InitPlugins.
type lateProber struct {
	volume.DynamicPluginProber
	await func() error
	left  bool // by a panic: the kubelet stops while it waits
}

// Init implements volume.DynamicPluginProber. Upstream only logs an error of it, and would start the whole kubelet.
func (p *lateProber) Init() error {
	if err := p.await(); err != nil {
		p.left = true
		panic(err)
	}
	return p.DynamicPluginProber.Init()
}

// late returns a configuration whose requests wait until all that the kubelet needs is ready: an API server that
// answers before is not complete, and an informer that it has refused begins again after a second.
func late(ctx context.Context, c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			waiting, cancel := context.WithCancelCause(ctx)
			defer cancel(nil)
			defer context.AfterFunc(r.Context(), func() { cancel(context.Cause(r.Context())) })()
			if lifecycle.AwaitNeeds(waiting) != nil {
				return nil, context.Cause(waiting)
			}
			return next.RoundTrip(r)
		})
	})
	return c
}

type roundTripper func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
