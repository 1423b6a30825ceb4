// Package network is the component "network": it lets the pods of this node reach those of the others, by flannel's
// backends vxlan or host-gw as a library.
//
// What is to be is in the Nodes (their pod CIDRs and addresses), nothing is written there: whatever a node must know of
// another follows from its Node object. What is there is read from the kernel: routes and, for vxlan, a device with
// neighbours. Each change of either, and twice a minute, compares the two; flannel makes what is missing, and what is
// not wanted is removed here, whoever left it. So a restart cuts no traffic, and another backend after it finds
// nothing of the one before. What is ours has a mark in the kernel (LinkAlias, RouteProtocol), and nothing else is touched.
//
// A stop leaves everything: pods go on. A third party's network makes this one withdraw. The pods' bridge, their
// addresses and the masquerading are runtime/cni's.
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

	"kubelith.io/kubelith/components/lifecycle"
)

// Backend is how packets get from node to node.
type Backend string

// The backends. With any other value nothing leads to other nodes, and what an earlier run made is removed.
const (
	VXLAN  Backend = "vxlan"
	HostGW Backend = "host-gw"
)

// connects tells whether the backend makes anything.
func (b Backend) connects() bool { return b == VXLAN || b == HostGW }

// Options of the component.
type Options struct {
	Backend      Backend
	NodeName     string
	NodeIPs      []net.IP // of this node, one per family
	ClusterCIDRs []string // all pods' addresses, one per family
	// Nodes come from the factory that the process shares (it is called when the apiserver is ready) or, where there is none, from
	// the API by Client, which may list and watch Nodes.
	Informers func() informers.SharedInformerFactory
	Client    *rest.Config
	Log       logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts    Options
	cluster []netip.Prefix

	changed chan struct{} // one pending signal at most: something may differ from what is wanted
	third   *atomic.Int32 // undecided, no or yes
	work    *lifecycle.Watchdog

	parent atomic.Int32 // of one run: index of the interface that the session uses

	// Of one run's goroutine.
	session *session
	own     node              // as last known: a Node that is deleted comes back
	told    map[string]string // what the log has about a subject, to say it once
}

// Whether a third party brings the network.
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
	s := &Server{opts: opts, changed: make(chan struct{}, 1), third: &atomic.Int32{}, work: &lifecycle.Watchdog{}, told: map[string]string{}}
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

// Needs implements lifecycle.Component. Without a backend there is nothing to learn from the apiserver.
func (s *Server) Needs() []string {
	if s.opts.Backend.connects() {
		return []string{"apiserver"}
	}
	return nil
}

// ThirdParty says whether a third party's CNI configuration counts now. Nothing is done before it has been
// said once.
func (s *Server) ThirdParty(theirs bool) {
	now := no
	if theirs {
		now = yes
	}
	if s.third.Swap(now) != now {
		s.signal()
	}
}

func (s *Server) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// When the loop looks again.
const (
	settle = 100 * time.Millisecond // after an event: others follow it
	verify = time.Second            // after something was changed, doubled up to `look` while it does not stay
	look   = 30 * time.Second       // at the latest
	retry  = 5 * time.Second        // after an error
)

// Healthy implements lifecycle.Health: no look takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when it watches: whether pods of other nodes are reached depends on
// those nodes, and on this one's Node, which the kubelet makes later.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	// Of its own: an earlier run may have been abandoned.
	run := &Server{opts: s.opts, cluster: s.cluster, changed: s.changed, third: s.third, work: s.work, told: map[string]string{}}
	return run.run(ctx, ready)
}

func (s *Server) run(ctx context.Context, ready func()) error {
	if !s.opts.Backend.connects() {
		if err := s.remove(setup{}); err != nil {
			s.opts.Log.WithError(err).Error("remove what an earlier run made for the way to other nodes")
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
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return nil
	}
	defer s.endSession()
	s.loop(ctx, nodes)
	return nil
}

// watchNodes signals when a Node changes in what matters here. stop waits for what it started; ctx must have ended.
func (s *Server) watchNodes(ctx context.Context) (_ corelisters.NodeLister, synced cache.InformerSynced, stop func(), err error) {
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
		AddFunc:    func(any) { s.signal() },
		DeleteFunc: func(any) { s.signal() },
		UpdateFunc: func(before, after any) {
			a, okA := before.(*corev1.Node)
			b, okB := after.(*corev1.Node)
			if !okA || !okB || a.UID != b.UID || describe(a) != describe(b) {
				s.signal()
			}
		},
	})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("watch Nodes: %w", err)
	}
	factory.Start(ctx.Done())
	stop = func() {
		_ = informer.RemoveEventHandler(handler) // fails only for a handler that is not there
		if own {
			factory.Shutdown()
		}
	}
	return nodes.Lister(), informer.HasSynced, stop, nil
}

// trim keeps of a Node what describe reads. There may be thousands, and each node has them all.
func trim(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	out := &corev1.Node{}
	out.Name, out.UID, out.ResourceVersion, out.CreationTimestamp = n.Name, n.UID, n.ResourceVersion, n.CreationTimestamp
	if role, ok := n.Labels[RoleLabel]; ok {
		out.Labels = map[string]string{RoleLabel: role}
	}
	out.Spec.PodCIDR, out.Spec.PodCIDRs = n.Spec.PodCIDR, n.Spec.PodCIDRs
	out.Status.Addresses = n.Status.Addresses
	return out, nil
}

// loop reconciles until ctx ends.
func (s *Server) loop(ctx context.Context, nodes corelisters.NodeLister) {
	next := time.NewTimer(0)
	defer next.Stop()
	wait, soon := verify, true
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.changed:
			if !soon { // or steady events would put it off for ever
				soon = true
				next.Reset(settle)
			}
		case <-next.C:
			soon = false
			changed, err := s.look(ctx, nodes)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil:
				s.tell("", err.Error(), func(text string) {
					s.opts.Log.Errorf("the way to the pods of other nodes, tried again every %s: %s", retry, text)
				})
				next.Reset(retry)
			case changed:
				s.tell("", "", nil)
				next.Reset(wait)
				wait = min(2*wait, look)
			default:
				s.tell("", "", nil)
				wait = verify
				next.Reset(look)
			}
		}
	}
}

// look compares once.
func (s *Server) look(ctx context.Context, nodes corelisters.NodeLister) (changed bool, err error) {
	defer s.work.Begin("a look at the way to other nodes")()
	all, err := nodes.List(labels.Everything())
	if err != nil {
		return false, err
	}
	return s.reconcile(ctx, all)
}

// tell logs something about a subject, unless it is what was logged last about it.
func (s *Server) tell(subject, text string, log func(string)) {
	if s.told[subject] == text {
		return
	}
	if text == "" {
		delete(s.told, subject)
		return
	}
	s.told[subject] = text
	log(text)
}

// errNoNode: the kubelet has not registered yet, or its pod CIDR is not allocated.
var errNoNode = errors.New("no Node yet")
