package tunnel

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	discoverylisters "k8s.io/client-go/listers/discovery/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/nodeaddr"
)

// view answers which node an address belongs to. A node may lie about itself: its Node's addresses and its pods' are
// its own to write. So a tunnel gets
//
//   - the kubelet's port at an address of its Node, if the address can be a node's and no other Node has it;
//   - ports of pods in the host's network there, as the pods' specs, which the node cannot write, have them;
//   - the parts of the cluster's pod networks in the spec of its Node, if no other Node has them.
//
// Everything else is dialled directly, as if there were no tunnel.
type view struct {
	rules    nodeaddr.Rules
	services []netip.Prefix
	pods     []netip.Prefix
	nodes    corelisters.NodeLister
	all      corelisters.ServiceLister
	slices   discoverylisters.EndpointSliceLister
	running  corelisters.PodLister
}

// newView returns a view of the informers, and what has to be synced before it is used.
func newView(o Options, f informers.SharedInformerFactory) (*view, []cache.DoneChecker) {
	nodes, services, endpoints, pods := f.Core().V1().Nodes(), f.Core().V1().Services(), f.Discovery().V1().EndpointSlices(), f.Core().V1().Pods()
	v := &view{
		rules: o.Addresses, services: nodeaddr.Parse(o.ServiceCIDRs, nil).Networks, pods: nodeaddr.Parse(o.ClusterCIDRs, nil).Networks,
		nodes: nodes.Lister(), all: services.Lister(), slices: endpoints.Lister(), running: pods.Lister(),
	}
	return v, []cache.DoneChecker{nodes.Informer().HasSyncedChecker(), services.Informer().HasSyncedChecker(),
		endpoints.Informer().HasSyncedChecker(), pods.Informer().HasSyncedChecker()}
}

// kubeletOf returns the address at which the API server connects to the kubelet of a node.
func (v *view) kubeletOf(name string) (at netip.AddrPort, err error) {
	node, err := v.nodes.Get(name)
	if err != nil {
		return at, fmt.Errorf("the node %s is not registered yet", name)
	}
	port := node.Status.DaemonEndpoints.KubeletEndpoint.Port
	if ips := nodeaddr.Internal(node); len(ips) > 0 && port > 0 && port < 1<<16 {
		ip, _ := netip.AddrFromSlice(ips[0])
		return netip.AddrPortFrom(ip.Unmap(), uint16(port)), nil
	}
	return at, fmt.Errorf("the node %s has not reported its address yet", name)
}

// kubelet returns the target for an address of a kubelet.
func (v *view) kubelet(address string) target {
	direct := target{address: address}
	at, err := parse(address)
	if err != nil {
		return direct
	}
	node := v.nodeAt(at.Addr())
	if node == nil || node.Status.DaemonEndpoints.KubeletEndpoint.Port != int32(at.Port()) {
		return direct
	}
	return target{node.Name, at.String()}
}

// find returns the target for an address of a Service, a pod or a node. Of a Service one endpoint of which is on a node
// with a tunnel, it chooses an endpoint, as kube-proxy in this host's kernel does otherwise.
func (v *view) find(address string, tunnelled func(node string) bool) target {
	at, err := parse(address)
	if err != nil {
		return target{address: address}
	}
	if !within(v.services, at.Addr()) {
		if node := v.owner(at); node != "" {
			return target{node, at.String()}
		}
		return target{address: address}
	}
	endpoints := v.endpoints(at)
	var waiting string // a node that may open its tunnel yet
	for _, e := range endpoints {
		if e.node != "" && tunnelled(e.node) {
			return endpoints[rand.IntN(len(endpoints))]
		}
		if e.node != "" {
			waiting = e.node
		}
	}
	return target{waiting, address}
}

// owner returns the agent that a connection to a node or a pod goes to; empty: none, or it is not clear.
func (v *view) owner(at netip.AddrPort) string {
	if within(v.pods, at.Addr()) {
		return v.podNetwork(at.Addr())
	}
	node := v.nodeAt(at.Addr())
	if node == nil || node.Status.DaemonEndpoints.KubeletEndpoint.Port != int32(at.Port()) && !v.hostPort(node.Name, at.Port()) {
		return ""
	}
	return node.Name
}

// nodeAt returns the agent with an address that no other Node has.
func (v *view) nodeAt(ip netip.Addr) *corev1.Node {
	nodes, err := v.nodes.List(labels.Everything())
	if err != nil { // a lister fails only when its index is broken
		return nil
	}
	rules := v.rules.With(nodes)
	nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool {
		return !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool {
			has, err := netip.ParseAddr(a.Address)
			return err == nil && has.Unmap() == ip
		})
	})
	if len(nodes) != 1 || nodes[0].Labels[names.RoleLabel] != names.RoleAgent || !slices.Contains(rules.Of(nodes)[nodes[0].Name].Own, ip) {
		return nil
	}
	return nodes[0]
}

// podNetwork returns the agent whose pods have an address.
func (v *view) podNetwork(ip netip.Addr) string {
	nodes, err := v.nodes.List(labels.Everything())
	if err != nil {
		return ""
	}
	nodes = slices.DeleteFunc(nodes, func(n *corev1.Node) bool { return !within(nodeaddr.Parse(n.Spec.PodCIDRs, nil).Networks, ip) })
	if len(nodes) != 1 || nodes[0].Labels[names.RoleLabel] != names.RoleAgent {
		return ""
	}
	return nodes[0].Name
}

// hostPort reports whether a pod in the host's network of a node has a port.
func (v *view) hostPort(node string, port uint16) bool {
	pods, err := v.running.List(labels.Everything())
	if err != nil {
		return false
	}
	declares := func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(has corev1.ContainerPort) bool {
			return has.ContainerPort == int32(port) && (has.Protocol == corev1.ProtocolTCP || has.Protocol == "")
		})
	}
	return slices.ContainsFunc(pods, func(p *corev1.Pod) bool {
		return p.Spec.NodeName == node && p.Spec.HostNetwork &&
			slices.ContainsFunc(slices.Concat(p.Spec.InitContainers, p.Spec.Containers), declares)
	})
}

// endpoints returns the ready endpoints of the Service that has a cluster address and a port.
func (v *view) endpoints(at netip.AddrPort) (all []target) {
	services, err := v.all.List(labels.Everything())
	if err != nil {
		return nil
	}
	for _, service := range services {
		i := slices.IndexFunc(service.Spec.Ports, func(p corev1.ServicePort) bool {
			return p.Port == int32(at.Port()) && (p.Protocol == corev1.ProtocolTCP || p.Protocol == "")
		})
		if i < 0 || !slices.ContainsFunc(service.Spec.ClusterIPs, func(ip string) bool {
			has, err := netip.ParseAddr(ip)
			return err == nil && has == at.Addr()
		}) {
			continue
		}
		selector := labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: service.Name})
		found, err := v.slices.EndpointSlices(service.Namespace).List(selector)
		if err != nil {
			return nil
		}
		for _, slice := range found {
			all = append(all, v.ready(slice, service.Spec.Ports[i].Name, at.Addr().Is4())...)
		}
		return all
	}
	return nil
}

// ready returns the ready endpoints of one family in a slice.
func (v *view) ready(slice *discoveryv1.EndpointSlice, port string, v4 bool) (all []target) {
	if (slice.AddressType == discoveryv1.AddressTypeIPv4) != v4 {
		return nil
	}
	for _, p := range slice.Ports {
		if p.Port == nil || p.Name != nil && *p.Name != port || p.Name == nil && port != "" || p.Protocol != nil && *p.Protocol != corev1.ProtocolTCP {
			continue
		}
		for _, e := range slice.Endpoints {
			if len(e.Addresses) == 0 || e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			ip, err := netip.ParseAddr(e.Addresses[0])
			if err != nil {
				continue
			}
			at := netip.AddrPortFrom(ip, uint16(*p.Port))
			all = append(all, target{v.owner(at), at.String()})
		}
	}
	return all
}

// parse parses IP:PORT; a name is no address of a node or a pod.
func parse(address string) (netip.AddrPort, error) {
	at, err := netip.ParseAddrPort(address)
	if err == nil && at.Addr().Zone() != "" {
		err = errors.New("has a zone")
	}
	return netip.AddrPortFrom(at.Addr().Unmap(), at.Port()), err
}

func within(networks []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(ip) })
}
