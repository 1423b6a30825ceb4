package servicelb

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	applycorev1 "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/record"

	"kubelith.io/kubelith/base/hostport"
	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/reconcile"
)

// fieldManager owns the addresses that we write, and distinguishes them from those of other writers.
const fieldManager = "kubelith-servicelb"

// writer updates the status of Services to match the decisions.
type writer struct {
	client   kubernetes.Interface
	events   record.EventRecorder
	log      logrus.FieldLogger
	opts     Options
	services corelisters.ServiceLister
	nodes    corelisters.NodeLister
	slices   discoverylisters.EndpointSliceLister
	changed  reconcile.Signal
	work     *lifecycle.Watchdog

	reported map[types.UID]string // the problem in the last Event of each Service
	refused  map[string]string    // the last message about each node, by name

	prover *prover
}

// pass decides once and writes what differs.
func (w *writer) pass(ctx context.Context) error {
	services, err := w.services.List(labels.Everything())
	if err != nil {
		return err
	}
	nodes, err := w.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	w.reportNodes(nodes)
	reported := map[types.UID]string{}
	var errs []error
	for _, d := range decide(world{services: services, nodes: nodes, local: w.local, listens: w.listens, proven: w.prover.proven, opts: w.opts}) {
		if err := w.write(ctx, d); err != nil {
			errs = append(errs, err)
		}
		if d.message != "" {
			if w.reported[d.service.UID] != d.message {
				w.events.Event(d.service, corev1.EventTypeWarning, d.reason, d.message)
				w.log.Warnf("Service %s/%s: %s", d.service.Namespace, d.service.Name, d.message)
			}
			reported[d.service.UID] = d.message
		}
	}
	w.reported = reported
	return errors.Join(errs...)
}

// write sets the addresses of one Service, if they differ.
func (w *writer) write(ctx context.Context, d decision) error {
	if inPlace(d.service, d.addresses) {
		return nil
	}
	if err := applyStatus(ctx, w.client, d.service, d.addresses); err != nil {
		return err
	}
	if len(d.addresses) == 0 {
		w.log.Infof("Service %s/%s no longer has an address", d.service.Namespace, d.service.Name)
		return nil
	}
	text := join(d.addresses)
	w.log.Infof("Service %s/%s is reachable at %s", d.service.Namespace, d.service.Name, text)
	if len(addressesOf(d.service)) == 0 {
		w.events.Event(d.service, corev1.EventTypeNormal, "LoadBalancerReady", "reachable at "+text)
	}
	return nil
}

// applyStatus makes addresses our only ones in the Service's status. It does nothing for a deleted Service.
func applyStatus(ctx context.Context, cs kubernetes.Interface, service *corev1.Service, addresses []netip.Addr) error {
	// With the UID: without it, an object that was deleted meanwhile would be created.
	object := applycorev1.Service(service.Name, service.Namespace).WithUID(service.UID)
	if len(addresses) > 0 {
		var ingress []*applycorev1.LoadBalancerIngressApplyConfiguration
		for _, a := range addresses {
			ingress = append(ingress, applycorev1.LoadBalancerIngress().WithIP(a.String()).WithIPMode(corev1.LoadBalancerIPModeVIP))
		}
		object.WithStatus(applycorev1.ServiceStatus().WithLoadBalancer(applycorev1.LoadBalancerStatus().WithIngress(ingress...)))
	}
	_, err := cs.CoreV1().Services(service.Namespace).ApplyStatus(ctx, object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return fmt.Errorf("write the status of Service %s/%s: %w", service.Namespace, service.Name, err)
}

// local returns the names of the nodes that have a ready endpoint of the Service.
func (w *writer) local(service *corev1.Service) sets.Set[string] {
	names := sets.New[string]()
	// The lister of a cache returns no errors.
	found, _ := w.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	for _, slice := range found {
		for _, e := range slice.Endpoints {
			if e.NodeName != nil && (e.Conditions.Ready == nil || *e.Conditions.Ready) {
				names.Insert(*e.NodeName)
			}
		}
	}
	return names
}

// listens implements world.
func (w *writer) listens(service *corev1.Service, n *corev1.Node, p hostport.Port) bool {
	found, _ := w.slices.EndpointSlices(service.Namespace).List(labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name}))
	for _, slice := range found {
		if !slices.ContainsFunc(slice.Ports, func(e discoveryv1.EndpointPort) bool {
			return e.Port != nil && *e.Port == p.Number && e.Protocol != nil && *e.Protocol == p.Protocol
		}) {
			continue
		}
		for _, e := range slice.Endpoints {
			listed := func(a corev1.NodeAddress) bool { return slices.Contains(e.Addresses, a.Address) }
			if e.NodeName != nil && *e.NodeName == n.Name && slices.ContainsFunc(n.Status.Addresses, listed) {
				return true
			}
		}
	}
	return false
}

// reportNodes logs, once, which addresses of nodes are not used.
func (w *writer) reportNodes(nodes []*corev1.Node) {
	believed, now := w.opts.Addresses.Of(nodes), map[string]string{}
	for _, n := range nodes {
		if n.Labels[names.RoleLabel] == "" {
			continue
		}
		why := append(believed[n.Name].Refused, w.prover.refuted(n, believed[n.Name].Own)...)
		if len(why) == 0 {
			continue
		}
		now[n.Name] = strings.Join(why, "; ")
		if w.refused[n.Name] != now[n.Name] {
			w.events.Eventf(n, corev1.EventTypeWarning, "AddressNotUsed", "some addresses of the node are not used for Services: %s", now[n.Name])
			w.log.Warnf("some addresses of node %s are not used for Services: %s", n.Name, now[n.Name])
		}
	}
	w.refused = now
}

// inPlace reports whether the Service's status has exactly these addresses, as virtual ones.
func inPlace(service *corev1.Service, addresses []netip.Addr) bool {
	return len(service.Status.LoadBalancer.Ingress) == len(addresses) && slices.Equal(addressesOf(service), addresses)
}

// addressesOf returns the virtual addresses in the status, sorted.
func addressesOf(service *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, i := range service.Status.LoadBalancer.Ingress {
		if a, err := netip.ParseAddr(i.IP); err == nil && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP) {
			all = append(all, a)
		}
	}
	return sorted(all)
}

// sorted sorts in place and removes duplicates.
func sorted(all []netip.Addr) []netip.Addr {
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

func join(addresses []netip.Addr) string {
	var out []string
	for _, a := range addresses {
		out = append(out, a.String())
	}
	return strings.Join(out, ", ")
}
