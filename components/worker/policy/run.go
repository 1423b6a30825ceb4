package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"kubelith.io/kubelith/base/events"
	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/base/reconcile"
	"kubelith.io/kubelith/components/worker/policy/kernel"
	"kubelith.io/kubelith/components/worker/policy/peers"
	"kubelith.io/kubelith/components/worker/policy/rules"
)

// run is one run of the component.
type run struct {
	*Server
	table   *kernel.Table
	ports   *kernel.Ports
	factory informers.SharedInformerFactory
	own     bool // the factory
	logged  logging.Once

	loggedDrops logging.Once

	removed atomic.Bool // the table, perhaps
	events  record.EventRecorder

	stopEvents func()

	policies []*follower // of both kinds
	peers    []*follower // pods and namespaces; nil without policies
	nodes    *follower   // nil without rules about nodes
	running  sync.WaitGroup
	adopted  map[types.UID]bool
}

// follower is a handler of an informer.
type follower struct {
	informer cache.SharedIndexInformer
	handler  cache.ResourceEventHandlerRegistration
}

func (f *follower) end() {
	_ = f.informer.RemoveEventHandler(f.handler) // fails only for a handler that does not exist
}

// begin follows the policies.
func (s *Server) begin(ctx context.Context) (*run, error) {
	r := &run{Server: s, table: kernel.New(s.families()), ports: &kernel.Ports{}, adopted: map[types.UID]bool{}}
	client, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	r.events, r.stopEvents = events.NewRecorder(ctx, client, events.Source(s.opts.NodeName))
	if s.opts.Informers != nil {
		r.factory = s.opts.Informers()
	} else {
		r.factory, r.own = informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(trim)), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.pods.load(); err != nil {
		return nil, fmt.Errorf("the pods of this node: %w", err)
	}
	s.mode, s.compiler = starting, rules.NewCompiler()
	s.compiler.SetServices(s.services())
	for uid, p := range s.pods.byUID {
		s.compiler.AddLocal(uid, p.IPs)
	}
	s.moved.Send()
	own, err := clusterPolicies(s.opts.Client)
	if err != nil {
		return nil, err
	}
	policies, err := follow(r, r.factory.Networking().V1().NetworkPolicies().Informer(),
		func(p *networkingv1.NetworkPolicy) {
			for _, err := range s.compiler.SetPolicy(p) {
				s.opts.Log.WithError(err).Warn("a part of a network policy allows nothing")
			}
		},
		func(p *networkingv1.NetworkPolicy) { s.compiler.DeletePolicy(p.Namespace, p.Name) })
	if err != nil {
		return nil, err
	}
	clusterWide, err := follow(r, own,
		func(p *policyv1alpha2.ClusterNetworkPolicy) {
			for _, err := range s.compiler.SetClusterPolicy(p) {
				s.opts.Log.Warn(err)
			}
		},
		func(p *policyv1alpha2.ClusterNetworkPolicy) { s.compiler.DeleteClusterPolicy(p.Name) })
	if err != nil {
		return nil, err
	}
	r.policies = []*follower{policies, clusterWide}
	r.running.Go(func() { own.RunWithContext(ctx) })
	r.factory.Start(ctx.Done())
	return r, nil
}

func (r *run) end() {
	for _, f := range r.policies {
		f.end()
	}
	r.unfollowPeers()
	r.stopEvents()
	r.running.Wait()
	if r.own {
		r.factory.Shutdown()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mode, r.compiler = starting, nil
	r.moved.Send()
}

// follow calls set and gone with the component's lock.
func follow[T metav1.Object](r *run, informer cache.SharedIndexInformer, set, gone func(T)) (*follower, error) {
	with := func(f func(T), o any) {
		object, ok := sharedinformers.As[T](o)
		if !ok {
			return
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.compiler != nil {
			f(object)
			r.changed.Send()
			r.moved.Send()
		}
	}
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { with(set, o) },
		UpdateFunc: func(_, o any) { with(set, o) },
		DeleteFunc: func(o any) { with(gone, o) },
	})
	if err != nil {
		return nil, err
	}
	return &follower{informer, handler}, nil
}

// followPeers follows pods and namespaces, and returns when all are known. Pods of this node that an earlier version
// has connected are found by their status.
func (r *run) followPeers(ctx context.Context) error {
	namespaces, err := follow(r, r.factory.Core().V1().Namespaces().Informer(),
		func(n *corev1.Namespace) { r.compiler.SetNamespace(n.Name, n.Labels) },
		func(n *corev1.Namespace) { r.compiler.DeleteNamespace(n.Name) })
	if err != nil {
		return err
	}
	r.peers = append(r.peers, namespaces)
	first := true
	set := func(p *peers.Pod) {
		if _, known := r.pods.byUID[p.UID]; first && !known && p.Node == r.opts.NodeName && len(p.IPs) > 0 {
			r.adopted[p.UID] = true
			r.compiler.AddLocal(p.UID, p.IPs)
		}
		r.compiler.SetPod(&p.Pod)
	}
	var synced cache.DoneChecker
	if r.own {
		synced, err = r.streamPods(ctx, set)
	} else {
		var pods *follower
		pods, err = follow(r, r.factory.Core().V1().Pods().Informer(), func(pod *corev1.Pod) {
			if p := peers.Of(pod); p != nil {
				set(p)
			} else {
				r.deletePod(peers.UID(pod))
			}
		}, func(pod *corev1.Pod) { r.deletePod(peers.UID(pod)) })
		if err == nil {
			synced = pods.handler.HasSyncedChecker()
			r.peers = append(r.peers, pods)
		}
	}
	if err != nil {
		return err
	}
	r.factory.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", namespaces.handler.HasSyncedChecker(), synced) {
		return ctx.Err()
	}
	r.mu.Lock()
	first = false
	r.mu.Unlock()
	return nil
}

// streamed is done when all pods have been sent once. It implements cache.DoneChecker.
type streamed struct{ context.Context }

func (streamed) Name() string { return "pods of the cluster" }

// streamPods follows pods on an agent until ctx ends.
func (r *run) streamPods(ctx context.Context, set func(*peers.Pod)) (synced cache.DoneChecker, err error) {
	client, err := kubernetes.NewForConfig(r.opts.Client)
	if err != nil {
		return nil, err
	}
	all, done := context.WithCancel(context.Background())
	locked := func(f func()) {
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.compiler != nil {
			f()
			r.changed.Send()
			r.moved.Send()
		}
	}
	r.running.Go(func() {
		known := map[types.UID]bool{}
		for ctx.Err() == nil {
			err := peers.Follow(ctx, client.Discovery().RESTClient(), known,
				func(p *peers.Pod) { locked(func() { set(p) }) },
				func(uid types.UID) { locked(func() { r.deletePod(uid) }) },
				done)
			if ctx.Err() == nil {
				r.opts.Log.WithError(err).Debug("the connection that sends the pods of the cluster has ended")
			}
			reconcile.Sleep(ctx, retry)
		}
	})
	return streamed{all}, nil
}

func (r *run) deletePod(uid types.UID) {
	r.compiler.DeletePod(uid)
	if r.adopted[uid] {
		delete(r.adopted, uid)
		if _, connected := r.pods.byUID[uid]; !connected { // otherwise it is open no sooner than its sandbox ends
			r.compiler.DeleteLocal(uid)
		}
	}
}

func (r *run) unfollowPeers() {
	for _, f := range r.peers {
		f.end()
	}
	r.peers = nil
	if r.nodes != nil {
		r.nodes.end()
		r.nodes = nil
	}
}

// followNodes follows nodes, and returns when all are known.
func (r *run) followNodes(ctx context.Context) error {
	nodes, err := follow(r, r.factory.Core().V1().Nodes().Informer(),
		func(n *corev1.Node) { r.compiler.SetNode(rules.NodeOf(n)) },
		func(n *corev1.Node) { r.compiler.DeleteNode(n.Name) })
	if err != nil {
		return err
	}
	r.factory.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", nodes.handler.HasSyncedChecker()) {
		nodes.end()
		return ctx.Err()
	}
	r.nodes = nodes
	return nil
}

// loop writes what changes until ctx ends.
func (r *run) loop(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watching.Go(func() {
		err := kernel.Watch(ctx, func() {
			r.removed.Store(true)
			r.changed.Send()
		})
		if err != nil {
			r.opts.Log.WithError(err).Warn("cannot watch nftables: " +
				"network policy rules that another program removes return only at the next change")
		}
	})
	if r.opts.LogDrops > 0 {
		r.table.LogDrops(r.opts.LogDrops)
		watching.Go(func() { r.logDrops(ctx) })
	}
	for _, f := range r.policies {
		if !cache.WaitFor(ctx, "", f.handler.HasSyncedChecker()) {
			return
		}
	}
	var again <-chan time.Time
	for {
		if err := r.step(ctx); err != nil && ctx.Err() == nil {
			if r.logged.News("", err.Error()) {
				r.opts.Log.Errorf("cannot enforce network policies, retrying every %s: %v", retry, err)
			}
			again = time.After(retry)
		} else {
			r.logged.News("", "")
			again = nil
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-again:
		}
	}
}

// step brings the kernel to what is known now.
func (r *run) step(ctx context.Context) error {
	r.mu.Lock()
	third, policies, nodes, was := r.third, r.compiler.Policies(), r.compiler.NeedsNodes(), r.mode
	r.mu.Unlock()
	if third || policies == 0 {
		now := idle
		if third {
			now = off
		}
		if was == now {
			return nil
		}
		if err := errors.Join(r.table.Remove(), r.ports.Remove()); err != nil {
			return err
		}
		r.setMode(now)
		return nil
	}
	if r.peers == nil {
		r.setMode(starting)
		if err := r.followPeers(ctx); err != nil {
			r.unfollowPeers()
			return err
		}
	}
	if nodes && r.nodes == nil {
		if err := r.followNodes(ctx); err != nil {
			return err
		}
	}
	if r.removed.Swap(false) && r.missing(ctx) {
		const text = "Another program changed the nftables table of network policies; Kubelith is restoring it."
		r.opts.Log.Warn(text)
		// As the kubelet does: kubectl describe finds the Events of a Node by its name as UID.
		r.events.Event(events.Node(r.opts.NodeName),
			corev1.EventTypeWarning, "NetworkPolicyTableRemoved", text)
	}
	r.mu.Lock()
	whole := r.table.Whole()
	var changes *rules.Changes
	if whole {
		changes = r.compiler.Take()
	} else {
		changes = r.compiler.All()
	}
	wanted := r.wanted
	guarded := map[string][]netip.Addr{}
	for _, p := range r.pods.byUID { // also those that no policy selects: they may send to one that is
		if p.Port != "" {
			guarded[p.Port] = p.IPs
		}
	}
	r.mu.Unlock()
	if err := r.ports.Write(ctx, guarded); err != nil {
		r.fail(err)
		return err
	}
	var err error
	if whole {
		err = r.table.Apply(ctx, changes)
	}
	if !whole || err != nil {
		if err != nil { // another program has changed the table
			r.opts.Log.WithError(err).Warn("writing the rules of network policies again")
			r.mu.Lock()
			changes = r.compiler.All()
			wanted = r.wanted
			r.mu.Unlock()
		}
		err = r.table.Replace(ctx, changes)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failure = err; err == nil {
		r.mode, r.written = enforcing, wanted
	}
	r.moved.Send()
	return err
}

// missing reports whether another program has removed a table.
func (r *run) missing(ctx context.Context) bool {
	table, ports := r.table.Check(ctx), r.ports.Check(ctx)
	return table || ports
}

// fail passes an error to the calls that wait for the kernel.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failure = err
	r.moved.Send()
}

// trim keeps what is read of pods, namespaces and nodes: an agent has all of the cluster.
func trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Namespace:
		out := &corev1.Namespace{}
		out.Name, out.UID, out.ResourceVersion, out.Labels = o.Name, o.UID, o.ResourceVersion, o.Labels
		return out, nil
	case *corev1.Node:
		out := &corev1.Node{}
		out.Name, out.UID, out.ResourceVersion, out.Labels = o.Name, o.UID, o.ResourceVersion, o.Labels
		out.Status.Addresses = o.Status.Addresses
		return out, nil
	}
	return object, nil
}
