package dns

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/intstr"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	applydiscoveryv1 "k8s.io/client-go/applyconfigurations/discovery/v1"
	applymetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	namespace    = metav1.NamespaceSystem
	serviceName  = "kube-dns" // the name that upstream's tools and conformance tests look for
	fieldManager = "kubelith-dns"
	managedBy    = "kubelith"
)

// objects keeps the Service and the EndpointSlices of this node, and watches the Node.
type objects struct {
	client  kubernetes.Interface
	opts    Options
	changed chan struct{} // one pending signal at most: something may differ from what is wanted

	nodes  corelisters.NodeLister
	slices discoverylisters.EndpointSliceLister
}

func newObjects(client kubernetes.Interface, opts Options) *objects {
	return &objects{client: client, opts: opts, changed: make(chan struct{}, 1)}
}

// watch starts three small watches: of our Service, its EndpointSlices and our Node. The returned function waits for
// their end, which comes with the end of ctx.
func (o *objects) watch(ctx context.Context) (wait func()) {
	ctx, cancel := context.WithCancel(ctx)
	factory := func(ns string, tweak func(*metav1.ListOptions)) informers.SharedInformerFactory {
		return informers.NewSharedInformerFactoryWithOptions(o.client, 0,
			informers.WithNamespace(ns), informers.WithTweakListOptions(tweak))
	}
	named := func(name string) func(*metav1.ListOptions) {
		return func(l *metav1.ListOptions) {
			l.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}
	}
	nodes := factory(metav1.NamespaceAll, named(o.opts.NodeName))
	services := factory(namespace, named(serviceName))
	slices := factory(namespace, func(l *metav1.ListOptions) {
		l.LabelSelector = discoveryv1.LabelServiceName + "=" + serviceName
	})
	o.nodes = nodes.Core().V1().Nodes().Lister()
	o.slices = slices.Discovery().V1().EndpointSlices().Lister()

	signal := func() {
		select {
		case o.changed <- struct{}{}:
		default:
		}
	}
	always := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { signal() },
		UpdateFunc: func(_, _ any) { signal() },
		DeleteFunc: func(any) { signal() },
	}
	// The Node changes with each heartbeat; only its addresses and its identity concern us.
	onlyAddresses := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { signal() },
		UpdateFunc: func(old, current any) {
			a, b := old.(*corev1.Node), current.(*corev1.Node)
			if a.UID != b.UID || !sameIPs(internalIPs(a), internalIPs(b)) {
				signal()
			}
		},
	}
	// Adding a handler fails only on an informer that was stopped before.
	_, _ = nodes.Core().V1().Nodes().Informer().AddEventHandler(onlyAddresses)
	_, _ = services.Core().V1().Services().Informer().AddEventHandler(always)
	_, _ = slices.Discovery().V1().EndpointSlices().Informer().AddEventHandler(always)
	all := []informers.SharedInformerFactory{nodes, services, slices}
	for _, f := range all {
		f.Start(ctx.Done())
	}
	return func() {
		cancel()
		for _, f := range all {
			f.Shutdown()
		}
	}
}

// nodeIPs are the addresses in the Node object; none while it does not exist or has none.
func (o *objects) nodeIPs() []net.IP {
	node, err := o.nodes.Get(o.opts.NodeName)
	if err != nil {
		return nil
	}
	return internalIPs(node)
}

func internalIPs(node *corev1.Node) []net.IP {
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		if ip := net.ParseIP(a.Address); a.Type == corev1.NodeInternalIP && ip != nil {
			ips = append(ips, ip)
		}
	}
	return ips
}

// publish makes the Service and the EndpointSlices of this node as they should be. Server-side apply writes nothing
// when all is in place.
func (o *objects) publish(ctx context.Context, nodeIPs []net.IP) error {
	if err := o.applyService(ctx); err != nil {
		return err
	}
	for _, cluster := range o.opts.ClusterDNS {
		family := familyOf(cluster)
		if err := o.applySlice(ctx, family, ofFamily(nodeIPs, family)); err != nil {
			return err
		}
	}
	return nil
}

func (o *objects) applyService(ctx context.Context) error {
	var clusterIPs []string
	var families []corev1.IPFamily
	for _, ip := range o.opts.ClusterDNS {
		clusterIPs = append(clusterIPs, ip.String())
		families = append(families, corev1.IPFamily(familyOf(ip)))
	}
	policy := corev1.IPFamilyPolicySingleStack
	if len(families) == 2 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	port := func(name string, protocol corev1.Protocol) *applycorev1.ServicePortApplyConfiguration {
		return applycorev1.ServicePort().WithName(name).WithProtocol(protocol).WithPort(53).
			WithTargetPort(intstr.FromInt32(int32(o.opts.Port)))
	}
	service := applycorev1.Service(serviceName, namespace).
		WithLabels(map[string]string{
			"k8s-app":                       serviceName,
			"kubernetes.io/cluster-service": "true",
			"kubernetes.io/name":            "CoreDNS",
			"app.kubernetes.io/managed-by":  managedBy,
		}).
		WithSpec(applycorev1.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).
			WithClusterIP(clusterIPs[0]).
			WithClusterIPs(clusterIPs...).
			WithIPFamilies(families...).
			WithIPFamilyPolicy(policy).
			// Every node answers for its own pods.
			WithInternalTrafficPolicy(corev1.ServiceInternalTrafficPolicyLocal).
			WithPorts(port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)))
	_, err := o.client.CoreV1().Services(namespace).Apply(ctx, service, applyOptions())
	if apierrors.IsInvalid(err) {
		// The cluster IP of a Service cannot be changed: the cluster DNS address was configured anew.
		if err := o.client.CoreV1().Services(namespace).Delete(ctx, serviceName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete Service %s/%s of another cluster DNS address: %w", namespace, serviceName, err)
		}
		_, err = o.client.CoreV1().Services(namespace).Apply(ctx, service, applyOptions())
		if err != nil {
			return fmt.Errorf("create Service %s/%s anew: %w", namespace, serviceName, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("apply Service %s/%s: %w", namespace, serviceName, err)
	}
	return nil
}

// applySlice publishes the node's addresses of one family. A family without addresses has no slice.
func (o *objects) applySlice(ctx context.Context, family discoveryv1.AddressType, ips []net.IP) error {
	name := sliceName(o.opts.NodeName, family)
	if len(ips) == 0 {
		if _, err := o.slices.EndpointSlices(namespace).Get(name); err != nil {
			return nil // not there, or not known yet: then its arrival is a change
		}
		err := o.client.DiscoveryV1().EndpointSlices(namespace).Delete(ctx, name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete EndpointSlice %s/%s: %w", namespace, name, err)
		}
		return nil
	}
	port := func(name string, protocol corev1.Protocol) *applydiscoveryv1.EndpointPortApplyConfiguration {
		return applydiscoveryv1.EndpointPort().WithName(name).WithProtocol(protocol).WithPort(int32(o.opts.Port))
	}
	slice := applydiscoveryv1.EndpointSlice(name, namespace).
		WithLabels(map[string]string{
			discoveryv1.LabelServiceName: serviceName,
			discoveryv1.LabelManagedBy:   managedBy,
		}).
		WithAddressType(family).
		WithEndpoints(applydiscoveryv1.Endpoint().
			WithAddresses(ips[0].String()). // several addresses of one endpoint have no meaning
			WithNodeName(o.opts.NodeName).
			WithConditions(applydiscoveryv1.EndpointConditions().WithReady(true).WithServing(true).WithTerminating(false))).
		WithPorts(port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP))
	if node, err := o.nodes.Get(o.opts.NodeName); err == nil {
		// The slice goes when the node is removed from the cluster for good.
		slice.WithOwnerReferences(applymetav1.OwnerReference().WithAPIVersion("v1").WithKind("Node").
			WithName(node.Name).WithUID(node.UID))
	}
	if _, err := o.client.DiscoveryV1().EndpointSlices(namespace).Apply(ctx, slice, applyOptions()); err != nil {
		return fmt.Errorf("apply EndpointSlice %s/%s: %w", namespace, name, err)
	}
	return nil
}

// backoff is short while the cluster is being made and longer when a request is refused.
func (o *objects) backoff(err error) time.Duration {
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) {
		return 2 * time.Second
	}
	return 100 * time.Millisecond
}

func applyOptions() metav1.ApplyOptions {
	return metav1.ApplyOptions{FieldManager: fieldManager, Force: true}
}

func sliceName(node string, family discoveryv1.AddressType) string {
	return serviceName + "-" + node + "-" + strings.ToLower(string(family))
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
