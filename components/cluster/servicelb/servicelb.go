// Package servicelb gives Services of type LoadBalancer the addresses of nodes.
//
// It only writes status: kube-proxy treats an address in status.loadBalancer.ingress as a virtual one and catches its
// packets on every node before the host's own sockets see them, so that the node's own address serves without a pod and
// without a listener. kube-proxy does everything about packets (externalTrafficPolicy, source ranges, session affinity,
// health check ports), as behind any load balancer; one pure function here (decide.go) decides which addresses a
// Service gets. An address that is not the node's, or a port on which its host listens, would be taken from its real
// owner: nodes must prove their addresses (prove.go) and report their ports (HostPorts).
//
// Services of another loadBalancerClass are never touched.
package servicelb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/events"
	"kubelith.io/kubelith/base/hostport"
	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/reconcile"
)

// Labels and annotations with which users choose nodes and Services.
const (
	// Class is the loadBalancerClass that selects this load balancer; Services without a class are ours too.
	Class = "kubelith.io/servicelb"
	// NodeLabel chooses nodes: as soon as one node has it, only nodes with it get Services. Its value is "true" or the
	// name of a pool; "false" keeps a node out.
	NodeLabel = "kubelith.io/servicelb"
	// PoolAnnotation, on a Service, is the value that NodeLabel must have.
	PoolAnnotation = "kubelith.io/servicelb-pool"
)

const (
	// settle is the time between two passes, in which changes collect.
	settle = 100 * time.Millisecond
	// retryDelay is the time until the next pass after a failed write.
	retryDelay = 2 * time.Second
)

// Options configures the component.
type Options struct {
	// Client calls the apiserver. Its identity lists Services, patches their status and creates Events.
	Client *rest.Config
	// Informers returns the factory that the process shares; it is called when the apiserver is ready.
	Informers func() informers.SharedInformerFactory
	// NodePorts are the ports on which Kubelith listens on each node, ServerPorts those on servers in addition. No
	// Service gets them. The kubelet's port is in the Node object.
	NodePorts, ServerPorts []hostport.Port
	// Addresses are the rules for which addresses a node may have.
	Addresses nodeaddr.Rules
	// KubeletCA is the file with the CAs of the kubelets' serving certificates.
	KubeletCA string
	// Log receives the component's own messages.
	Log logrus.FieldLogger
}

// Server is the component.
type Server struct {
	opts Options
	work lifecycle.Watchdog
}

var (
	_ lifecycle.Component = (*Server)(nil)
	_ lifecycle.Health    = (*Server)(nil)
)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{opts: o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "servicelb" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Healthy implements lifecycle.Health: no pass takes too long.
func (s *Server) Healthy(ctx context.Context) error { return s.work.Healthy(ctx) }

// Run implements lifecycle.Component. It is ready when it knows all Services and nodes.
func (s *Server) Run(ctx context.Context, ready func()) error {
	s.work.Reset()
	cs, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return s.run(ctx, cs, s.opts.Informers(), newProver(s.opts, nodeaddr.Handshake(s.opts.KubeletCA, &net.Dialer{})), ready)
}

// run is Run with the given clients.
func (s *Server) run(ctx context.Context, cs kubernetes.Interface, shared informers.SharedInformerFactory, prover *prover, ready func()) error {
	recorder, stopEvents := events.NewRecorder(ctx, cs, corev1.EventSource{Component: "kubelith-servicelb"})
	defer stopEvents()

	view := sharedinformers.NewView(shared)
	w := &writer{
		client:   cs,
		events:   recorder,
		log:      s.opts.Log,
		work:     &s.work,
		opts:     s.opts,
		services: view.Core().V1().Services().Lister(),
		nodes:    view.Core().V1().Nodes().Lister(),
		slices:   view.Discovery().V1().EndpointSlices().Lister(),
		changed:  reconcile.NewSignal(),
		prover:   prover,
		refused:  map[string]string{},
	}
	synced, stop, err := w.watch(view)
	defer stop()
	if err != nil {
		return err
	}
	view.Start(ctx.Done())
	if !cache.WaitFor(ctx, "", synced...) {
		return nil
	}
	ready()
	// Before the first pass, which would remove unproven addresses.
	w.prove(ctx)
	var proving sync.WaitGroup
	proving.Go(func() { w.keepProving(ctx) })
	w.loop(ctx)
	proving.Wait()
	return nil
}

// watch signals changed on every event that may change a decision. The returned function ends that.
func (w *writer) watch(view informers.SharedInformerFactory) (synced []cache.DoneChecker, stop func(), err error) {
	var stops []func()
	stop = func() {
		for _, f := range stops {
			f()
		}
	}
	on := func(i cache.SharedIndexInformer, counts func(any) bool) {
		registration, addErr := i.AddEventHandler(w.signals(counts))
		if addErr != nil {
			err = errors.Join(err, addErr)
			return
		}
		stops = append(stops, func() { _ = i.RemoveEventHandler(registration) })
		synced = append(synced, registration.HasSyncedChecker())
	}
	on(view.Core().V1().Services().Informer(), func(any) bool { return true })
	on(view.Core().V1().Nodes().Informer(), w.ourNode)
	on(view.Discovery().V1().EndpointSlices().Informer(), w.ofOurService)
	return synced, stop, err
}

// signals returns a handler that signals changes of the objects that count.
func (w *writer) signals(counts func(any) bool) cache.ResourceEventHandler {
	signal := func(objects ...any) {
		if slices.ContainsFunc(objects, counts) {
			w.changed.Send()
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { signal(obj) },
		UpdateFunc: func(old, obj any) { signal(old, obj) },
		DeleteFunc: func(obj any) { signal(obj) },
	}
}

// ourNode reports whether obj is a Node that could have Services.
func (w *writer) ourNode(obj any) bool {
	node, ok := sharedinformers.As[*corev1.Node](obj)
	return ok && node.Labels[names.RoleLabel] != ""
}

// ofOurService reports whether obj is an EndpointSlice of one of our Services: the nodes of its pods may matter. Most
// slices belong to other Services.
func (w *writer) ofOurService(obj any) bool {
	slice, ok := sharedinformers.As[*discoveryv1.EndpointSlice](obj)
	if !ok {
		return false
	}
	service, err := w.services.Services(slice.Namespace).Get(slice.Labels[discoveryv1.LabelServiceName])
	return err == nil && owns(service)
}

// loop runs a pass for each signal until ctx ends.
func (w *writer) loop(ctx context.Context) {
	reconcile.Loop(ctx, w.changed, 0, func() (again time.Duration) {
		done := w.work.Begin("assigning addresses to Services")
		err := w.pass(ctx)
		done()
		if err != nil && ctx.Err() == nil {
			w.log.Warnf("cannot update all Services, retrying in %s: %v", retryDelay, err)
			again = retryDelay
		}
		reconcile.Sleep(ctx, settle)
		return again
	})
}
