// Package network is the component "network": it connects the pods of this node to those of the others, with flannel's
// backends vxlan or host-gw as a library, or with the kernel's WireGuard (tunnel).
//
// The wanted state is in the Nodes (their pod CIDRs and addresses): a Node object has all that other nodes must know.
// Only WireGuard needs more: the node adds its public key. The actual state is read from the kernel: routes and, for
// vxlan, a device with neighbours, for WireGuard a device with peers. On each change of either, and twice a minute, the
// two are compared; flannel or tunnel creates missing entries, and this package removes unwanted ones, whoever left
// them. So a restart cuts no traffic, and another backend finds nothing of the previous one. Our entries have a mark in
// the kernel (names.LinkAlias, names.RouteProtocol), and no others are touched.
//
// While there is no other node, there is neither device nor route. VXLAN takes packets from the other nodes' addresses
// only (gate).
//
// A stop leaves everything: pods go on. A third party's network makes this one withdraw. components/worker/cni does the
// pods' bridge, their addresses and the masquerading.
package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// Backend is how packets are sent between nodes.
type Backend string

// The backends. With any other value nothing is routed to other nodes, and entries of an earlier run are removed.
const (
	VXLAN     Backend = "vxlan"
	HostGW    Backend = "host-gw"
	WireGuard Backend = "wireguard"
)

// connects reports whether the backend creates anything.
func (b Backend) connects() bool { return b == VXLAN || b == HostGW || b == WireGuard }

// Options of the component.
type Options struct {
	Backend      Backend
	NodeName     string
	NodeIPs      []net.IP // of this node, one per family
	ClusterCIDRs []string // all pods' addresses, one per family
	// Nodes come from the factory that the process shares (it is called when the apiserver is ready) or, if it is nil,
	// from the API through Client, which may list and watch Nodes and, for WireGuard, annotate its own.
	Informers func() informers.SharedInformerFactory
	Client    *rest.Config
	KeyFile   string // where WireGuard's private key is kept
	Log       logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts    Options
	cluster []netip.Prefix

	changed reconcile.Signal
	third   *atomic.Int32 // undecided, no or yes
	work    *lifecycle.Watchdog

	parent atomic.Int32 // of one run: index of the interface that the session uses

	// For the goroutine of one run.
	session *session
	gate    *gate // nil until it is needed
	tunnel  *tunnel
	own     node // as last known: a deleted Node comes back
	logged  logging.Once
}

// Whether a third party provides the network.
const (
	undecided int32 = iota
	no
	yes
)

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New checks the options; nothing is touched before Run.
func New(opts Options) (*Server, error) {
	s := &Server{opts: opts, changed: reconcile.NewSignal(), third: &atomic.Int32{}, work: &lifecycle.Watchdog{}}
	for _, c := range opts.ClusterCIDRs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return nil, fmt.Errorf("cluster CIDR: %w", err)
		}
		s.cluster = append(s.cluster, p.Masked())
	}
	return s, nil
}

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "network" }

// Needs implements lifecycle.Component. Without a backend there is nothing to read from the apiserver.
func (s *Server) Needs() []string {
	if s.opts.Backend.connects() {
		return []string{"apiserver"}
	}
	return nil
}

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// ThirdParty sets whether a third party's CNI configuration is in use. Nothing is done before the first call.
func (s *Server) ThirdParty(theirs bool) {
	now := no
	if theirs {
		now = yes
	}
	if s.third.Swap(now) != now {
		s.changed.Send()
	}
}

// When the loop compares again.
const (
	settle = 100 * time.Millisecond // after an event: others follow it
	verify = time.Second            // after a change, doubled up to `look` while the change does not last
	look   = 30 * time.Second       // at the latest
	retry  = 5 * time.Second        // after an error
)

// Healthy implements lifecycle.Health: it fails when one look takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when it watches: whether it reaches pods of other nodes depends on
// those nodes, and on this one's Node, which the kubelet creates later.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	// Its own: an earlier run may have been abandoned.
	run := &Server{opts: s.opts, cluster: s.cluster, changed: s.changed, third: s.third, work: s.work}
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	if !s.opts.Backend.connects() {
		if err := s.remove(ctx); err != nil {
			s.opts.Log.WithError(err).Error("cannot remove the interfaces, routes and packet filter to other nodes of an earlier run")
		}
		ready()
		<-ctx.Done()
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes, synced, stop, err := s.watchNodes(ctx)
	if err != nil {
		return err
	}
	defer func() { cancel(); stop() }()
	wait := s.watchLinks(ctx)
	defer func() { cancel(); wait() }()
	ready()
	if !cache.WaitFor(ctx, "", synced) {
		return nil
	}
	defer s.endSession()
	s.loop(ctx, nodes)
	return nil
}

// watchNodes signals relevant changes of Nodes. stop waits for what it started; ctx must have ended.
func (s *Server) watchNodes(ctx context.Context) (_ corelisters.NodeLister, synced cache.DoneChecker, stop func(), err error) {
	var factory informers.SharedInformerFactory
	own := s.opts.Informers == nil
	if own {
		client, err := kubernetes.NewForConfig(s.opts.Client)
		if err != nil {
			return nil, nil, nil, fmt.Errorf("client to watch Nodes: %w", err)
		}
		factory = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim))
	} else {
		factory = s.opts.Informers()
	}
	nodes := factory.Core().V1().Nodes()
	informer := nodes.Informer()
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.changed.Send() },
		DeleteFunc: func(any) { s.changed.Send() },
		UpdateFunc: func(before, after any) {
			a, okA := before.(*corev1.Node)
			b, okB := after.(*corev1.Node)
			if !okA || !okB || a.UID != b.UID || describe(a) != describe(b) {
				s.changed.Send()
			}
		},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch Nodes: %w", err)
	}
	factory.Start(ctx.Done())
	stop = func() {
		_ = informer.RemoveEventHandler(handler) // fails only for a handler that does not exist
		if own {
			factory.Shutdown()
		}
	}
	return nodes.Lister(), informer.HasSyncedChecker(), stop, nil
}

// trim keeps the fields of a Node that describe reads. There may be thousands of Nodes, and each node has them all.
func trim(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	out := &corev1.Node{}
	out.Name, out.UID, out.ResourceVersion, out.CreationTimestamp = n.Name, n.UID, n.ResourceVersion, n.CreationTimestamp
	if role, ok := n.Labels[names.RoleLabel]; ok {
		out.Labels = map[string]string{names.RoleLabel: role}
	}
	if key, ok := n.Annotations[names.WireGuardKeyAnnotation]; ok {
		out.Annotations = map[string]string{names.WireGuardKeyAnnotation: key}
	}
	out.Spec.PodCIDR, out.Spec.PodCIDRs = n.Spec.PodCIDR, n.Spec.PodCIDRs
	out.Status.Addresses = n.Status.Addresses
	return out, nil
}

// loop reconciles until ctx ends.
func (s *Server) loop(ctx context.Context, nodes corelisters.NodeLister) {
	wait := verify
	reconcile.Loop(ctx, s.changed, settle, func() time.Duration {
		changed, err := s.update(ctx, nodes)
		switch {
		case ctx.Err() != nil:
			return 0
		case err != nil:
			if s.logged.News("", err.Error()) {
				s.opts.Log.Errorf("cannot set up the routes to pods of other nodes, retrying every %s: %v", retry, err)
			}
			return retry
		}
		s.logged.News("", "")
		if !changed {
			wait = verify
			return look
		}
		defer func() { wait = min(2*wait, look) }()
		return wait
	})
}

// update compares once.
func (s *Server) update(ctx context.Context, nodes corelisters.NodeLister) (changed bool, err error) {
	defer s.work.Begin("updating the routes to other nodes")()
	all, err := nodes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	return s.reconcile(ctx, all)
}

// errNoNode: the kubelet has not registered yet, or its pod CIDR is not allocated.
var errNoNode = errors.New("no Node yet")
