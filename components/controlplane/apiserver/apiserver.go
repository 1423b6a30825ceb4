// Package apiserver runs kube-apiserver in this process: the aggregator, the core API and the API extensions, as one
// handler chain.
//
// The flow is upstream's: Options -> upstream's options (options.go) -> Config (config.go, where the chain gets its
// in-process loopback client, its authenticator and authorizer) -> CreateServerChain -> PrepareRun -> Run.
//
// options.go adds the admission plugins of plugins/admission. Extension points for later work, each in one place of
// config.go or options.go: audit backend, tracer provider. record.go is what the flight recorder sees of the API.
package apiserver

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/pki"
	"kubelith.io/kubelith/components/controlplane/apiserver/initializers"
	"kubelith.io/kubelith/components/controlplane/apiserver/passwordfile"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/trace/record"
)

// Options configures the component.
type Options struct {
	// NodeName is this server's, unique in the cluster.
	NodeName string
	// BindAddress and Port are where the TLS port listens.
	BindAddress string
	Port        int
	// AdvertiseAddress is the address of this server in the endpoints of the
	// Service kubernetes.default.
	AdvertiseAddress string
	// ServiceCIDRs has one CIDR per family, the primary one first.
	ServiceCIDRs []string
	// ClusterDomain is the DNS domain of the cluster; it is in the issuer's name.
	ClusterDomain string
	// EtcdEndpoint is the address of etcd, as --etcd-servers takes it.
	EtcdEndpoint string
	// EtcdAnswers is closed when etcd answers. Upstream ends a start if etcd does not answer within 20 s. Nil: it
	// answers.
	EtcdAnswers <-chan struct{}
	// SlowSync returns how long a sync on etcd's disk takes, if that is long, else 0. Nil: the disk is not slow.
	SlowSync func() time.Duration
	// EncryptionConfig is the path of an EncryptionConfiguration.
	EncryptionConfig string
	// PKI has the paths of all certificates and keys.
	PKI *pki.Bundle
	// Args are "key=value" arguments named as kube-apiserver's own flags.
	Args []string
	// DialKubelet connects to kubelets, for logs and exec: a Node may name any address. nil: every address is allowed.
	// A user's egress selector takes precedence.
	DialKubelet func(ctx context.Context, network, address string) (net.Conn, error)
	// DialCluster connects to Services, pods and other ports of nodes: for webhooks, aggregated APIs and the proxy of
	// the API. nil: directly. A user's egress selector takes precedence.
	DialCluster func(ctx context.Context, network, address string) (net.Conn, error)
	// Client is opened with the finished handler.
	Client *client.InProcess
	// Log receives the reasons for refused bootstrap tokens; upstream writes to klog.
	Log logrus.FieldLogger
	// Extend, when set, is served as well.
	Extend *Extension
	// Plugins, when set, are those whose admission plugins review requests.
	Plugins plugins.Set
	// SchedulerPolicy is the ConfigMap that the scheduler may read for its policy; without a name: none.
	SchedulerPolicy types.NamespacedName
	// Record is the flight recorder. It gets the requests that write or are refused, and changes of objects' states;
	// its timelines are served. Nil: it is off.
	Record *record.Store
	// VirtualAddress returns the API's, which no Service may have; the zero Addr while there is none. Nil: there is
	// none.
	VirtualAddress func() netip.Addr
	// Handle, when set, wraps the handler behind authentication and authorization.
	Handle func(http.Handler) http.Handler
}

// Server is the apiserver component.
type Server struct {
	opts     Options
	upstream *options.ServerRunOptions
	// anonymousHealth: only the health endpoints, and what a machine reads before it joins (jointoken.ClusterInfoPath),
	// answer without credentials. The user's --apiserver-arg=anonymous-auth replaces it.
	anonymousHealth bool
	// ownEgress: the user has not configured an egress selector for connections to nodes and Services.
	ownEgress bool
	// shared holds the informers of the process; created is closed when it is set.
	shared  informers.SharedInformerFactory
	created chan struct{}
	// served is set before the component is ready.
	served atomic.Bool
	// removals refuses nodes that were removed; set with shared.
	removals *removals
	recorder *flight // nil: off
	// initializers hides new objects until they are initialized.
	initializers *initializers.Initializers
	// passwordFile is the user's --apiserver-arg=basic-auth-file, passwords its content. Empty and nil: there is none.
	passwordFile string
	passwords    *passwordfile.File
	// goroutines are those of Run, and those that post-start hooks leave running.
	goroutines lifecycle.Goroutines
}

var _ lifecycle.Component = (*Server)(nil)

// New checks the options against upstream's flags; nothing is started.
func New(o Options) (*Server, error) {
	s := &Server{opts: o, recorder: newFlight(o.Record), created: make(chan struct{})}
	s.initializers = initializers.New(o.Log, &s.goroutines)
	if err := s.complete(); err != nil {
		return nil, err
	}
	return s, nil
}

// Ports implements lifecycle.Listener.
func (s *Server) Ports() []lifecycle.Port {
	return []lifecycle.Port{{Network: "tcp", Address: s.opts.BindAddress, Number: s.opts.Port, Setting: "--https-port"}}
}

// Informers returns the factory that the apiserver, the controllers and other components in the process share. It waits
// until Run has created it: components that need this one call it in their Run, and do not wait. The factory cannot be
// a plain value: components are built once to check their arguments and again to run, but a process has one factory of
// that name (cache.NewInformerName), which ends with the server that Run builds.
func (s *Server) Informers() informers.SharedInformerFactory {
	<-s.created
	return s.shared
}

// Upstream returns the options that upstream's apiserver is built from.
func (s *Server) Upstream() *options.ServerRunOptions { return s.upstream }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "apiserver" }

// Needs implements lifecycle.Component. Plugins start before the first request, and end after the last.
func (s *Server) Needs() []string {
	if s.opts.Plugins == nil {
		return []string{"etcd"}
	}
	return []string{"etcd", "plugins"}
}

// Run implements lifecycle.Component. It is ready when /readyz returns ok.
func (s *Server) Run(ctx context.Context, ready func()) error {
	chain, documents, err := s.build(ctx)
	if err != nil {
		return err
	}
	prepared, err := chain.PrepareRun()
	if err != nil {
		return err
	}
	documents.forget()
	own, err := kubernetes.NewForConfig(s.opts.Client.Config(client.APIServer))
	if err != nil {
		return err
	}
	s.opts.Client.Open(chain.GenericAPIServer.Handler)
	defer s.opts.Client.Close()

	running, stop := context.WithCancel(ctx)
	defer func() { stop(); s.goroutines.End() }()
	s.goroutines.Go(func() { s.announceReady(running, own, ready) })
	if s.passwords != nil {
		s.goroutines.Go(func() { s.passwords.Follow(running, s.opts.Log) })
	}
	return prepared.Run(running)
}

// build creates the chain of the three servers from completed options, with its documents.
func (s *Server) build(ctx context.Context) (*aggregator.APIAggregator, *documents, error) {
	completed, err := s.upstream.Complete(ctx)
	if err != nil {
		return nil, nil, err
	}
	if errs := completed.Validate(); len(errs) > 0 {
		return nil, nil, fmt.Errorf("invalid options: %w", errs[0])
	}
	config, err := s.newConfig(ctx, completed)
	if err != nil {
		return nil, nil, err
	}
	complete, err := config.Complete()
	if err != nil {
		return nil, nil, err
	}
	chain, err := app.CreateServerChain(complete)
	if err != nil {
		return nil, nil, err
	}
	if err := s.serveConfigurations(chain); err != nil {
		return nil, nil, err
	}
	if err := s.extend(chain); err != nil {
		return nil, nil, err
	}
	documents, err := documentOnDemand(chain, config.KubeAPIs.ControlPlane.Generic)
	return chain, documents, err
}
