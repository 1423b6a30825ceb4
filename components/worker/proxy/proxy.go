// Package proxy programs the packet filter so that Services reach their pods: kube-proxy in nftables mode.
//
// It composes upstream's proxiers and event sources itself. Upstream's own server calls os.Exit when the Node is
// deleted or gets other addresses, which here would end etcd too, and it cannot be stopped. When the component stops,
// its rules stay: Services work during a restart.
package proxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	kubeproxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	proxyscheme "k8s.io/kubernetes/pkg/proxy/apis/config/scheme"
	"k8s.io/kubernetes/pkg/proxy/conntrack"
	"k8s.io/kubernetes/pkg/proxy/metrics"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/netevents"
	"kubelith.io/kubelith/base/reconcile"
)

// Options configures the component. All fields except Args are required.
type Options struct {
	// Client calls the apiserver with the rights of upstream's system:node-proxier role.
	//
	// The component cannot use the process's shared informers: upstream watches Services and EndpointSlices with
	// selectors (no headless Services, no foreign proxies), and its proxier relies on that.
	Client *rest.Config
	// NodeName is the name of the Node object of this host.
	NodeName string
	// NodeIPs are the node's addresses, the primary first, until the Node object has others.
	NodeIPs []net.IP
	// ClusterCIDRs are the pod networks. Traffic from elsewhere to a Service is masqueraded.
	ClusterCIDRs []string
	// Args are upstream's kube-proxy flags as key=value.
	Args []string
	// Log receives the component's own messages; upstream's parts write to klog.
	Log logrus.FieldLogger
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// Server is the component.
type Server struct {
	opts   Options
	config *kubeproxyconfig.KubeProxyConfiguration
	client *rest.Config
	health *healthz
	work   lifecycle.Watchdog
}

// New checks the options, including Args; nothing is started.
func New(opts Options) (*Server, error) {
	config, client, err := configure(opts)
	if err != nil {
		return nil, err
	}
	if len(opts.NodeIPs) == 0 {
		return nil, errors.New("proxy: the node has no address")
	}
	return &Server{opts: opts, config: config, client: client, health: newHealthz(config)}, nil
}

// Ports implements lifecycle.Listener: where health is served, if anywhere.
func (s *Server) Ports() []lifecycle.Port {
	address, port, _ := net.SplitHostPort(s.config.HealthzBindAddress) // upstream has checked its format
	number, _ := strconv.Atoi(port)
	if number == 0 {
		return nil
	}
	return []lifecycle.Port{{Network: "tcp", Address: address, Number: number, Setting: "--proxy-arg=healthz-bind-address=ADDRESS:N"}}
}

// Name is the component's name.
func (s *Server) Name() string { return "proxy" }

// Needs names what must be ready first.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter. Two would write the same table.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartAlone }

// Healthy implements lifecycle.Health: it fails when a write of rules takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run keeps the rules up to date until ctx ends and calls ready once the first complete set is in the kernel.
//
// The socket for healthz stays open until the process exits: upstream has no way to close it.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("nft not found: install nftables")
	}
	client, err := kubernetes.NewForConfig(s.client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	metrics.RegisterMetrics(s.config.Mode)
	s.setConntrack(ctx)

	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	removed := reconcile.NewSignal()
	watching.Go(func() {
		if err := netevents.TableRemovals(ctx, table, removed.Send); err != nil {
			s.opts.Log.WithError(err).Warn("cannot watch nftables: " +
				"Service rules that another program removes return only when a Service changes, or within an hour")
		}
	})

	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("events: %w", err)
	}
	defer broadcaster.Shutdown()

	node := newNode(client, s.opts.NodeName)
	stopNode := node.watch(ctx)
	defer stopNode()

	s.health.follow(node)
	unhealthy := s.health.serve()

	ips := s.opts.NodeIPs
	var once sync.Once
	for {
		next, err := s.serve(ctx, &session{
			config:   s.configFor(ips),
			client:   client,
			node:     node,
			nodeName: s.opts.NodeName,
			nodeIPs:  ips,
			recorder: broadcaster.NewRecorder(proxyscheme.Scheme, "kube-proxy"),
			health:   s.health.server,
			work:     &s.work,
			log:      s.opts.Log,
		}, unhealthy, removed, func() { once.Do(ready) })
		if err != nil || next == nil {
			return err
		}
		ips = next // the rules are built again for other addresses
	}
}

// serve runs a session until ctx ends, or another one has to follow for the addresses that it returns: the node's are
// others, or another program has removed the rules.
func (s *Server) serve(
	ctx context.Context, session *session, unhealthy <-chan error, removed <-chan struct{}, ready func(),
) (next []net.IP, err error) {
	whole := ctx
	session.follows = func() bool { return whole.Err() == nil || lifecycle.Restarting(whole) }
	ctx, end := context.WithCancel(ctx)
	ended, done, written := error(nil), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		defer utilruntime.HandleCrash()
		ended = errors.New("the goroutine of a session exited") // stays if the session does not return
		ended = session.run(ctx, func() {
			close(written)
			ready()
		})
	}()
	defer func() {
		end()
		<-done
		err = cmp.Or(err, ended)
	}()
	return s.wait(ctx, session, done, unhealthy, written, removed)
}

// setConntrack sets the limits of connection tracking, as far as this host allows. In a container the table's size
// cannot be set, and upstream gives up at the first failure: then only the timeouts are set.
func (s *Server) setConntrack(ctx context.Context) {
	limits := s.config.Linux.Conntrack.DeepCopy()
	err := conntrack.SetSysctls(ctx, limits)
	if err == nil {
		return
	}
	s.opts.Log.Warnf("cannot set the size of the connection tracking table, keeping the host's: %v", err)
	limits.MaxPerCore = ptr.To[int32](0)
	if err := conntrack.SetSysctls(ctx, limits); err != nil {
		s.opts.Log.Warnf("cannot set the timeouts of connection tracking, keeping the host's: %v", err)
	}
}

// wait returns the addresses of the session that has to follow, or none when ctx has ended or something has failed.
func (s *Server) wait(
	ctx context.Context, session *session, done <-chan struct{}, unhealthy <-chan error, written, removed <-chan struct{},
) ([]net.IP, error) {
	node, ips := session.node, session.nodeIPs
	var missing <-chan struct{} // nil until the rules are written
	for {
		select {
		case <-written:
			written, missing = nil, removed
		case <-missing:
			if !lost(ctx, session.families()) {
				continue
			}
			s.opts.Log.Warnf("another program has removed the nftables table %s: writing the rules of Services again", table)
			return ips, nil
		case <-ctx.Done():
			return nil, nil
		case <-done:
			return nil, nil
		case err := <-unhealthy:
			return nil, fmt.Errorf("health check server: %w", err)
		case <-node.changed:
			current := node.ips()
			if len(current) == 0 || reflect.DeepEqual(texts(current), texts(ips)) {
				continue
			}
			if !slices.Contains(s.config.NodePortAddresses, kubeproxyconfig.NodePortAddressesPrimary) {
				continue // no rule contains the node's addresses
			}
			s.opts.Log.Infof("the node's addresses changed from %v to %v", ips, current)
			return current, nil
		}
	}
}

// configFor returns the configuration with the keywords of nodeport-addresses replaced for a node with these addresses.
func (s *Server) configFor(ips []net.IP) *kubeproxyconfig.KubeProxyConfiguration {
	c := s.config.DeepCopy()
	c.NodePortAddresses = nodePortAddresses(s.config.NodePortAddresses, ips)
	return c
}

// nodePortAddresses replaces the keywords that upstream's --nodeport-addresses knows.
func nodePortAddresses(given []string, ips []net.IP) []string {
	var out []string
	for _, a := range given {
		switch a {
		case kubeproxyconfig.NodePortAddressesPrimary:
			seen := map[corev1.IPFamily]bool{}
			for _, ip := range ips {
				if f := familyOf(ip); !seen[f] && !ip.IsLoopback() {
					seen[f] = true
					out = append(out, hostCIDR(ip))
				}
			}
		case kubeproxyconfig.NodePortAddressesLocalhost:
			out = append(out, "127.0.0.0/8", "::1/128")
		case kubeproxyconfig.NodePortAddressesAll:
			out = append(out, "0.0.0.0/0", "::/0")
		default:
			out = append(out, a)
		}
	}
	return out
}

func hostCIDR(ip net.IP) string {
	if familyOf(ip) == corev1.IPv4Protocol {
		return ip.String() + "/32"
	}
	return ip.String() + "/128"
}

func familyOf(ip net.IP) corev1.IPFamily {
	if ip.To4() != nil {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func texts(ips []net.IP) []string {
	out := make([]string, 0, len(ips))
	for _, ip := range ips {
		out = append(out, ip.String())
	}
	return out
}
