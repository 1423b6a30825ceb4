// Package dnspublisher is the component "dns-publisher": it maintains the Service kube-dns and the EndpointSlices that
// route the pods of each node to the DNS server on that node.
package dnspublisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	sharedinformers "kubelith.io/kubelith/base/informers"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
	"kubelith.io/kubelith/base/reconcile"
)

const (
	namespace    = metav1.NamespaceSystem
	fieldManager = names.DNSManager
	managedBy    = names.ManagedBy
)

// firstRetry and lastRetry bound the time between retries of a refused write.
const firstRetry, lastRetry = 100 * time.Millisecond, time.Minute

// Options configures the component. All fields without a stated default are required.
type Options struct {
	// Client creates, patches and deletes services and endpointslices in kube-system, and lists and watches them.
	Client *rest.Config
	// Informers returns the factory that the process shares.
	Informers func() informers.SharedInformerFactory
	// ClusterDNS are the addresses of the kube-dns Service, at most one per family.
	ClusterDNS []net.IP
	// Log receives what cannot be published.
	Log logrus.FieldLogger
}

// Server is the component. It keeps the Service, and the EndpointSlices that route each node's pods to their own node.
// A cluster has one, on a server: with the right to write EndpointSlices, a node could route every Service of
// kube-system to itself.
type Server struct{ opts Options }

var _ lifecycle.Component = (*Server)(nil)

// New returns the component; nothing is started.
func New(o Options) *Server { return &Server{o} }

// Name implements lifecycle.Component.
func (s *Server) Name() string { return "dns-publisher" }

// Needs implements lifecycle.Component.
func (s *Server) Needs() []string { return []string{"apiserver"} }

// RestartPolicy implements lifecycle.Restarter.
func (*Server) RestartPolicy() lifecycle.Policy { return lifecycle.RestartBeside }

// Run implements lifecycle.Component. It is ready when the Service exists, and a slice of each node whose slice can be
// written.
func (s *Server) Run(ctx context.Context, ready func()) error {
	client, err := kubernetes.NewForConfig(s.opts.Client)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	newPublisher(client, s.opts).run(ctx, ready)
	return nil
}

// publisher is one run of the component.
type publisher struct {
	client  kubernetes.Interface
	opts    Options
	changed reconcile.Signal

	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
	known  []cache.DoneChecker // done when the existing nodes and slices have been read
}

func newPublisher(client kubernetes.Interface, opts Options) *publisher {
	return &publisher{client: client, opts: opts, changed: reconcile.NewSignal()}
}

// run publishes until ctx ends. It calls published once, when the Service exists and all nodes were tried: a node's
// slice that cannot be written does not keep other nodes from DNS.
func (p *publisher) run(ctx context.Context, published func()) {
	defer p.watch(ctx)()
	if !cache.WaitFor(ctx, "", p.known...) { // existing slices would be written again, without their owner
		return
	}
	announced, delay := false, firstRetry
	reconcile.Loop(ctx, p.changed, 0, func() time.Duration {
		service, slices := p.publish(ctx)
		if ctx.Err() != nil {
			return 0
		}
		if service == nil && !announced {
			announced = true
			published()
		}
		err := errors.Join(service, slices)
		if err == nil {
			delay = firstRetry
			return 0
		}
		// kube-system itself may be missing in the first moments of a new cluster.
		level := logrus.DebugLevel
		if delay >= time.Second {
			level = logrus.WarnLevel
		}
		p.opts.Log.WithError(err).Logf(level, "cannot publish cluster DNS, retrying in %s", delay)
		defer func() { delay = min(2*delay, lastRetry) }()
		return delay
	})
}

// watch starts two small watches, of our Service and its EndpointSlices, and uses the shared informer of Nodes. The
// returned function ends them and waits.
func (p *publisher) watch(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	services := sharedinformers.One(p.client, namespace, names.DNSService)
	ours := informers.NewSharedInformerFactoryWithOptions(p.client, 0, informers.WithNamespace(namespace),
		informers.WithTweakListOptions(func(l *metav1.ListOptions) {
			l.LabelSelector = discoveryv1.LabelServiceName + "=" + names.DNSService
		}))
	nodes := sharedinformers.NewView(p.opts.Informers())
	p.nodes = nodes.Core().V1().Nodes().Lister()
	p.slices = ours.Discovery().V1().EndpointSlices().Lister()

	// Adding a handler fails only on a stopped informer.
	_, _ = nodes.Core().V1().Nodes().Informer().AddEventHandler(onChange(p.changed))
	_, _ = services.Core().V1().Services().Informer().AddEventHandler(sharedinformers.OnEvent(p.changed.Send))
	_, _ = ours.Discovery().V1().EndpointSlices().Informer().AddEventHandler(sharedinformers.OnEvent(p.changed.Send))
	p.known = []cache.DoneChecker{nodes.Core().V1().Nodes().Informer().HasSyncedChecker(), ours.Discovery().V1().EndpointSlices().Informer().HasSyncedChecker()}
	nodes.Start(ctx.Done())
	end := sharedinformers.Start(ctx, services, ours)
	return func() {
		cancel()
		nodes.Close()
		end()
	}
}

// publish creates and updates the Service and the EndpointSlices. The first error is the Service's, the second one that
// of all slices.
func (p *publisher) publish(ctx context.Context) (service, slices error) {
	service = p.applyService(ctx)
	wanted, errs := p.wanted(), []error(nil)
	for _, e := range wanted {
		if !p.upToDate(e) {
			errs = append(errs, p.applySlice(ctx, e))
		}
	}
	return service, errors.Join(append(errs, p.deleteOthers(ctx, wanted)...)...)
}

// endpoint is one node's DNS server in one family.
type endpoint struct {
	node   string
	uid    types.UID // of the Node
	family discoveryv1.AddressType
	ip     net.IP
}

func (e endpoint) name() string {
	return names.DNSService + "-" + e.node + "-" + strings.ToLower(string(e.family))
}

// wanted returns an endpoint for each of our nodes and each family of the cluster DNS in which the node has an address.
func (p *publisher) wanted() (out []endpoint) {
	nodes, _ := p.nodes.List(labels.Everything()) // from memory: it does not fail
	for _, n := range nodes {
		if n.Labels[names.RoleLabel] == "" {
			continue
		}
		ips := nodeaddr.Internal(n)
		for _, cluster := range p.opts.ClusterDNS {
			family := familyOf(cluster)
			if of := ofFamily(ips, family); len(of) > 0 {
				out = append(out, endpoint{n.Name, n.UID, family, of[0]}) // several addresses in one endpoint have no meaning
			}
		}
	}
	return out
}

// upToDate reports whether the slice is known and right, so that a change of one node sends no API requests about all
// others.
func (p *publisher) upToDate(e endpoint) bool {
	s, err := p.slices.EndpointSlices(namespace).Get(e.name())
	if err != nil {
		return false
	}
	owned := len(s.OwnerReferences) == 1 && s.OwnerReferences[0].UID == e.uid
	return owned && s.Labels[discoveryv1.LabelManagedBy] == managedBy && s.AddressType == e.family &&
		len(s.Endpoints) == 1 && slices.Equal(s.Endpoints[0].Addresses, []string{e.ip.String()}) &&
		s.Endpoints[0].NodeName != nil && *s.Endpoints[0].NodeName == e.node &&
		(s.Endpoints[0].Conditions.Ready == nil || *s.Endpoints[0].Conditions.Ready) &&
		len(s.Ports) == 2 && !slices.ContainsFunc(s.Ports, func(port discoveryv1.EndpointPort) bool {
		return port.Port == nil || *port.Port != names.DNSPort
	})
}

// deleteOthers removes our slices of nodes and families that no longer have an address.
func (p *publisher) deleteOthers(ctx context.Context, wanted []endpoint) (errs []error) {
	known, _ := p.slices.EndpointSlices(namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelManagedBy: managedBy}))
	for _, s := range known {
		if slices.ContainsFunc(wanted, func(e endpoint) bool { return e.name() == s.Name }) {
			continue
		}
		err := p.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, s.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete EndpointSlice %s/%s: %w", namespace, s.Name, err))
		}
	}
	return errs
}

// applyService applies the Service. Server-side apply writes nothing when nothing has changed.
func (p *publisher) applyService(ctx context.Context) error {
	var clusterIPs []string
	var families []corev1.IPFamily
	for _, ip := range p.opts.ClusterDNS {
		clusterIPs = append(clusterIPs, ip.String())
		families = append(families, corev1.IPFamily(familyOf(ip)))
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	port := func(name string, protocol corev1.Protocol) *applycorev1.ServicePortApplyConfiguration {
		return applycorev1.ServicePort().WithName(name).WithProtocol(protocol).WithPort(53).
			WithTargetPort(intstr.FromInt32(names.DNSPort))
	}
	service := applycorev1.Service(names.DNSService, namespace).
		WithLabels(map[string]string{
			"k8s-app":                       names.DNSService,
			"kubernetes.io/cluster-service": "true",
			"kubernetes.io/name":            "CoreDNS",
			names.ManagedByLabel:            managedBy,
		}).
		WithSpec(applycorev1.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithClusterIP(clusterIPs[0]).
			WithClusterIPs(clusterIPs...).
			WithIPFamilies(families...).
			WithIPFamilyPolicy(policy).
			// Every node serves its own pods.
			WithInternalTrafficPolicy(corev1.ServiceInternalTrafficPolicyLocal).
			WithPorts(port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)))
	_, err := p.client.CoreV1().Services(namespace).Apply(ctx, service, applyOptions())
	if apierrors.IsInvalid(err) {
		// The cluster IP of a Service cannot be changed: the cluster DNS address has a new value in the configuration.
		if err := p.client.CoreV1().Services(namespace).Delete(ctx, names.DNSService, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Service %s/%s, which has another cluster IP: %w", namespace, names.DNSService, err)
		}
		_, err = p.client.CoreV1().Services(namespace).Apply(ctx, service, applyOptions())
		if err != nil {
			return fmt.Errorf("recreate Service %s/%s: %w", namespace, names.DNSService, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply Service %s/%s: %w", namespace, names.DNSService, err)
	}
	return nil
}

// applySlice publishes a node's address of one family.
func (p *publisher) applySlice(ctx context.Context, e endpoint) error {
	port := func(name string, protocol corev1.Protocol) *applydiscoveryv1.EndpointPortApplyConfiguration {
		return applydiscoveryv1.EndpointPort().WithName(name).WithProtocol(protocol).WithPort(names.DNSPort)
	}
	slice := applydiscoveryv1.EndpointSlice(e.name(), namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: names.DNSService,
			discoveryv1.LabelManagedBy:   managedBy,
		}).
		WithAddressType(e.family).
		WithEndpoints(applydiscoveryv1.Endpoint().
			WithAddresses(e.ip.String()).
			WithNodeName(e.node).
			WithConditions(applydiscoveryv1.EndpointConditions().WithReady(true).WithServing(true).WithTerminating(false))).
		WithPorts(port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)).
		// The slice goes when the node is removed from the cluster for good.
		WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion("v1").WithKind("Node").WithName(e.node).WithUID(e.uid))
	if _, err := p.client.DiscoveryV1().EndpointSlices(namespace).Apply(ctx, slice, applyOptions()); err != nil {
		return fmt.Errorf("apply EndpointSlice %s/%s: %w", namespace, e.name(), err)
	}
	return nil
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
}

func familyOf(ip net.IP) discoveryv1.AddressType {
	if ip.To4() != nil {
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

func ofFamily(ips []net.IP, family discoveryv1.AddressType) []net.IP {
	var out []net.IP
	for _, ip := range ips {
		if familyOf(ip) == family {
			out = append(out, ip)
		}
	}
	return out
}

// onChange signals the relevant changes of Nodes: they change with each heartbeat.
func onChange(changed reconcile.Signal) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { changed.Send() },
		UpdateFunc: func(old, current any) {
			a, b := old.(*corev1.Node), current.(*corev1.Node)
			if a.UID != b.UID || a.Labels[names.RoleLabel] != b.Labels[names.RoleLabel] || !nodeaddr.Same(nodeaddr.Internal(a), nodeaddr.Internal(b)) {
				changed.Send()
			}
		},
		DeleteFunc: func(any) { changed.Send() },
	}
}
