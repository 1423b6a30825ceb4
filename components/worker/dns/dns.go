// Package dns answers the cluster's names inside the process, with CoreDNS as a library.
//
// CoreDNS listens on a high port of the node's own addresses. A selectorless Service (kube-system/kube-dns, at the
// cluster DNS address) and one EndpointSlice per node and address family make kube-proxy route there, so that pods
// reach it as in any other cluster, on their own node, without a DNS pod. The leading server publishes these objects
// for all nodes (components/cluster/dnspublisher). The package does not touch pods' resolv.conf (the kubelet does). It
// has one rule in the packet filter: only root may send from the port.
package dns

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/reconcile"
)

// checkEvery is the time between two checks of the host's resolvers, and until the next try when CoreDNS cannot be
// replaced.
const checkEvery = 5 * time.Second

// Options configures the component. All fields without a stated default are required.
type Options struct {
	// Client calls the apiserver. Its identity lists and watches services, endpointslices, namespaces and its own node.
	Client *rest.Config
	// Events lets this node report errors in the ConfigMap coredns-custom as Events: agents may write none.
	Events bool
	// NodeName is the name of the Node object of this host.
	NodeName string
	// NodeIPs are the node's addresses until the Node object has others.
	NodeIPs []net.IP
	// ClusterDNS are the addresses of the kube-dns Service, at most one per family.
	ClusterDNS []net.IP
	// ClusterDomain is the zone of the cluster, for example cluster.local.
	ClusterDomain string
	// ClusterCIDRs are the pod networks: only they and this host get answers.
	ClusterCIDRs []string
	// ResolvConf returns the file with the resolvers for all other names; nil means HostResolvConf. The file is checked
	// repeatedly: resolvers change, or are set after the machine starts.
	ResolvConf func() string
	// Log receives the component's own messages; CoreDNS itself writes to the standard library's logger.
	Log logrus.FieldLogger
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// Server is the component. CoreDNS registers its parts process-wide, so one Server runs per process.
type Server struct{ opts Options }

// New returns the component; nothing is started.
func New(opts Options) *Server {
	if opts.ResolvConf == nil {
		opts.ResolvConf = HostResolvConf
	}
	return &Server{opts: opts}
}

// Ports implements lifecycle.Listener.
func (s *Server) Ports() (all []lifecycle.Port) {
	for _, address := range bindAddresses(s.opts.NodeIPs) {
		for _, network := range []string{"tcp", "udp"} {
			all = append(all, lifecycle.Port{Network: network, Address: address, Number: names.DNSPort})
		}
	}
	return all
}

// Name is the component's name.
func (s *Server) Name() string { return "dns" }

// Needs names what must be ready first.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter. The component stops CoreDNS itself, whatever the run does.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: CoreDNS gives any answer.
func (s *Server) Healthy(ctx context.Context) error {
	return answers(ctx, s.opts.ClusterDomain)
}

// Run answers queries until ctx ends. It calls ready when kubernetes.default.svc resolves.
func (s *Server) Run(ctx context.Context, ready func()) error {
	if err := s.opts.validate(); err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(s.opts.Client) // CoreDNS creates its own
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	registerPlugins(s.opts.Client)
	if err := portFree(s.opts.NodeIPs); err != nil {
		return err
	}
	with := settings{ips: s.opts.NodeIPs, upstreams: s.upstreams(nil)}
	if len(with.upstreams) == 0 {
		s.opts.Log.Warnf("the host has no DNS resolver: names outside %s fail until %s lists one", s.opts.ClusterDomain, s.opts.ResolvConf())
	}
	first, err := s.serve(with)
	if err != nil {
		return fmt.Errorf("start CoreDNS: %w", err)
	}
	// When asked to stop, CoreDNS goes on answering from its cache while the other components stop: the end of the
	// process ends it, so that pods miss DNS only until the next start. Another run could not have its port.
	current := &serving{instance: first}
	defer current.endWith(ctx)()

	changed := reconcile.NewSignal()
	own := &node{name: s.opts.NodeName, changed: changed}
	defer own.watch(ctx, client)()
	added := newCustomizer(client, s.opts, changed)
	defer added.watch(ctx)()

	working, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() { stop(); running.Wait() }()
	running.Go(func() {
		defer utilruntime.HandleCrash()
		if waitForAnswer(working, s.opts.ClusterDomain); working.Err() == nil {
			ready()
		}
	})
	running.Go(func() {
		defer utilruntime.HandleCrash()
		s.keepPort(working)
	})

	reconcile.Loop(ctx, changed, 0, func() time.Duration {
		before := current.get()
		want := settings{ips: own.ips(), upstreams: s.upstreams(before.upstreams), custom: added.wanted(before.custom)}
		if len(want.ips) == 0 {
			want.ips = before.ips
		}
		current.set(s.follow(before, want, s.serve, added.refuse))
		return checkEvery
	})
	return nil
}

// follow replaces CoreDNS when its settings change, and returns the serving instance. Wrong additions to the
// configuration are refused, and stop nothing.
func (s *Server) follow(serving *instance, want settings, serve func(settings) (*instance, error), refuse func(custom, error)) *instance {
	if want.equal(serving.settings) {
		return serving
	}
	moved, err := serve(want)
	if err != nil && want.custom.text != serving.custom.text {
		refuse(want.custom, err)
		if want.custom = serving.custom; want.equal(serving.settings) {
			return serving
		}
		moved, err = serve(want)
	}
	if err != nil {
		s.opts.Log.Warnf("CoreDNS keeps addresses %v and resolvers %v, retrying in %v: %v", serving.ips, serving.upstreams, checkEvery, err)
		return serving
	}
	if !nodeaddr.Same(want.ips, serving.ips) {
		s.opts.Log.Infof("the node's addresses changed from %v to %v", serving.ips, want.ips)
	}
	if !slices.Equal(want.upstreams, serving.upstreams) {
		s.opts.Log.Infof("the host's resolvers changed from %v to %v", serving.upstreams, want.upstreams)
	}
	if want.custom.text != serving.custom.text {
		s.opts.Log.Infof("applied ConfigMap %s/%s", customNamespace, names.DNSCustom)
	}
	serving.stop()
	return moved
}

// upstreams returns the host's current resolvers. While there are none, the previous ones stay: the file may just be
// being written.
func (s *Server) upstreams(before []string) []string {
	now, err := resolvers(s.opts.ResolvConf(), s.opts.ClusterDNS)
	if err != nil || len(now) == 0 {
		return before
	}
	return now
}

// serve starts CoreDNS.
func (s *Server) serve(with settings) (*instance, error) {
	return start(corefile{
		Domain:    s.opts.ClusterDomain,
		Bind:      bindAddresses(with.ips),
		Allow:     s.opts.ClusterCIDRs,
		Upstreams: with.upstreams,
		Custom:    with.custom,
	}, with)
}

// validate returns an error for wrong options.
func (o Options) validate() error {
	switch {
	case o.Client == nil:
		return errors.New("no client")
	case o.NodeName == "":
		return errors.New("no node name")
	case len(o.NodeIPs) == 0:
		return errors.New("no node address to listen on")
	case len(o.ClusterDNS) == 0 || len(o.ClusterDNS) > 2:
		return fmt.Errorf("one cluster DNS address per family is needed, got %v", o.ClusterDNS)
	case o.ClusterDomain == "":
		return errors.New("no cluster domain")
	}
	return nil
}

func contains(ips []net.IP, ip net.IP) bool {
	return slices.ContainsFunc(ips, ip.Equal)
}
