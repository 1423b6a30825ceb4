// Package kubelet runs the kubelet in the process, with clients of the node's
// own identity (system:node:NAME) that it is given: in-process ones on a server,
// components/join's on an agent.
//
// It is upstream's kubelet, started through the exported app.Run with typed
// options. Upstream's client certificates and their rotation are not used: a
// server needs none, and upstream's rotation closes all connections. The serving
// certificate is given on a server, and requested by upstream's code on an agent.
//
// Upstream ends the process with os.Exit on a dozen conditions. Those that a
// user can bring about are looked for before anything is started: the ports
// and the cgroups by components/host, the files that flags name by New.
//
// Seams for later work: the tracer provider is made in dependencies. The CRI
// clients are made by upstream from the endpoint in setConfig
// (PreInitRuntimeService, which app.Run calls, overwrites any in the
// dependencies): what is to stand between kubelet and containerd is a CRI server
// on a socket of its own, whose path is given there.
package kubelet

import (
	"context"
	"flag"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/sirupsen/logrus"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kubelet/app"
	"k8s.io/kubernetes/cmd/kubelet/app/options"
	"k8s.io/kubernetes/pkg/kubelet"

	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/pki"
)

// Options says what kind of node this is.
type Options struct {
	// RootDir holds pods' volumes and the plugin sockets.
	RootDir string
	// StaticPodDir has manifests of static pods; it is made when missing.
	StaticPodDir string
	NodeName     string
	NodeIPs      []net.IP
	// Labels ("key=value") and Taints ("key[=value]:effect") are given to the Node when it registers.
	Labels, Taints []string
	ClusterDNS     []net.IP
	ClusterDomain  string
	// CRISocket is the path of the CRI's unix socket.
	CRISocket string
	// CgroupDriver is cgroupfs or systemd; the CRI's answer goes first.
	CgroupDriver string
	// ResolvConf is the file that pods with dnsPolicy Default see.
	ResolvConf string
	// ClientCA is the path of the certificate of the CA for those who call the kubelet.
	ClientCA string
	// Serving is the kubelet's own certificate. Without it the kubelet asks the API for one, in the name of the node's
	// addresses, renews it, and keeps it in CertDir.
	Serving pki.Pair
	CertDir string
	// ShutdownGrace is how long pods may take to end, in order, when the machine shuts down; zero: they are not waited for.
	ShutdownGrace time.Duration
	// KeepRegistered makes the Node object again when somebody deletes it.
	KeepRegistered bool
	// Disconnect is called after a heartbeat that failed again, to end connections on which nothing comes; nil: Client is
	// in-process and has none.
	Disconnect func()
	// Args are "key=value" arguments named as the kubelet's own flags.
	Args []string
	// Client acts as the node.
	Client *rest.Config
	// Log receives the component's own messages; upstream's kubelet writes to klog.
	Log logrus.FieldLogger
}

// requestsServing tells whether the kubelet asks for its serving certificate.
func (o Options) requestsServing() bool { return o.Serving == pki.Pair{} }

// Server is the kubelet component.
type Server struct {
	opts     Options
	upstream *options.KubeletServer
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

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "kubelet" }

// Needs implements lifecycle.Component. The controller-manager goes first
// because the constructors of its controllers and the kubelet set the same
// package variables of pkg/volume/csi: the last one wins, and it has to be the
// one that knows the node's name. Storage removes what the kubelet must not find and, at the stop, serves its volumes longer.
func (s *Server) Needs() []string {
	return []string{"apiserver", "containerd", "images", "controller-manager", "storage"}
}

// Run implements lifecycle.Component. It is ready when the kubelet's own
// health endpoint says ok, and it has the serving certificate that it asks for.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := os.MkdirAll(s.opts.RootDir, 0o750); err != nil {
		return fmt.Errorf("cannot make its directory: mount it writable or give another --kubelet-root-dir: %w", err)
	}
	if err := os.MkdirAll(s.opts.StaticPodDir, 0o755); err != nil {
		return fmt.Errorf("cannot make the directory of static pods: mount it writable or give another --data-dir: %w", err)
	}
	deps, err := s.dependencies(ctx)
	if err != nil {
		return err
	}
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	go s.awaitReady(waiting, ready)
	if s.opts.KeepRegistered {
		registered := make(chan struct{})
		go func() {
			defer close(registered)
			s.keepRegistered(waiting, deps.KubeClient)
		}()
		defer func() { stop(); <-registered }()
	}
	if err := app.Run(ctx, s.upstream, deps, utilfeature.DefaultFeatureGate); ctx.Err() == nil {
		return err
	}
	return nil // asked to stop: what it was about when it started fails then, and is no failure
}

// heartbeatTimeout is how long a write of the Node's status or its lease may take. Upstream's limit, the lesser of the lease's
// duration and the status frequency, ends a heartbeat on a connection that is dead. In the process there is none: a heartbeat
// that takes longer waits for the disk, and ending it only adds a write. The lease's duration is left as the limit.
func (s *Server) heartbeatTimeout() time.Duration {
	lease := time.Duration(s.upstream.NodeLeaseDurationSeconds) * time.Second
	if s.opts.Disconnect == nil {
		return lease
	}
	return min(s.upstream.NodeStatusUpdateFrequency.Duration, lease)
}

// dependencies are upstream's own, with our clients.
func (s *Server) dependencies(ctx context.Context) (*kubelet.Dependencies, error) {
	// cAdvisor finds out what a container is called from containerd; its only
	// setting for that is a flag of the process.
	if err := flag.Set("containerd", s.opts.CRISocket); err != nil {
		return nil, err
	}
	deps, err := app.UnsecuredDependencies(ctx, s.upstream, utilfeature.DefaultFeatureGate)
	if err != nil {
		return nil, err
	}
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return nil, err
	}
	heartbeat := rest.CopyConfig(s.opts.Client)
	heartbeat.Timeout = s.heartbeatTimeout()
	if deps.HeartbeatClient, err = kubernetes.NewForConfig(heartbeat); err != nil {
		return nil, err
	}
	events := rest.CopyConfig(s.opts.Client)
	if events.QPS = float32(s.upstream.EventRecordQPS); events.QPS == 0 {
		events.QPS = -1
	}
	events.Burst = int(s.upstream.EventBurst)
	eventClient, err := kubernetes.NewForConfig(events)
	if err != nil {
		return nil, err
	}
	deps.KubeClient, deps.EventClient = cs, eventClient.CoreV1()
	deps.OnHeartbeatFailure = s.opts.Disconnect
	return deps, nil
}
