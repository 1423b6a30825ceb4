package why

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/oneline"
)

// Reach is the question whether a pod reaches a Service or another pod.
type Reach struct {
	From Target // a pod
	To   Target // a Service or a pod
	Port int32  // of To; 0: all that a Service has, none of a pod
}

// maxConnects bounds the connections that an answer takes.
const maxConnects = 4

// ExplainReach reports why a pod does not reach a Service or another pod, as far as the API shows it: the two objects,
// names, nodes, and whether something listens. It lets the API server connect to the ports of the destination, with a
// GET request for /, unless the caller may not.
func ExplainReach(ctx context.Context, r *Reader, q Reach) (*Answer, error) {
	a := &Answer{APIVersion: Version, Object: q.From.Object()}
	f, err := r.reach(ctx, q)
	if err != nil {
		return nil, err
	}
	a.Finding, a.Unread = *f, r.unread
	if a.Evidence == nil {
		a.Evidence = []Evidence{}
	}
	return a, nil
}

func (r *Reader) reach(ctx context.Context, q Reach) (*Finding, error) {
	from, f, err := r.end(ctx, q.From)
	if f != nil || err != nil {
		return f, err
	}
	if q.To.Kind.Kind == "Pod" {
		to, f, err := r.end(ctx, q.To)
		if err != nil {
			return nil, err
		}
		if f != nil {
			return f.under(q.From.Object(), q.To.Object()), nil
		}
		ports := []int32{}
		if q.Port != 0 {
			ports = append(ports, q.Port)
		}
		return r.path(ctx, q, from, []destination{{to, ports}}), nil
	}
	service, err := r.Service(ctx, q.To.Namespace, q.To.Name)
	if apierrors.IsNotFound(err) {
		return r.absent(ctx, q.To).under(q.From.Object(), q.To.Object()), nil
	}
	if err != nil {
		return nil, err
	}
	return r.reachService(ctx, q, from, service)
}

// end reads a pod that is one end of the connection; a finding explains why it cannot be.
func (r *Reader) end(ctx context.Context, t Target) (*corev1.Pod, *Finding, error) {
	pod, err := r.Pod(ctx, t.Namespace, t.Name)
	if apierrors.IsNotFound(err) {
		return nil, r.absent(ctx, t), nil
	}
	if err != nil {
		return nil, nil, err
	}
	if pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && pod.DeletionTimestamp == nil {
		if f := podNode(ctx, r, pod); f != nil && f.Status == Broken {
			return pod, f, nil
		}
		return pod, nil, nil
	}
	f, err := explainPod(ctx, r, pod)
	if err == nil && f.Status == Healthy { // it has ended as it should
		f = broken(PodNotRunning, fmt.Sprintf("%s does not run", podObject(pod))).saw(podObject(pod).String()+" .status.phase", string(pod.Status.Phase)).
			do("Start a pod that keeps running.")
	}
	return pod, f, err
}

func (r *Reader) reachService(ctx context.Context, q Reach, from *corev1.Pod, s *corev1.Service) (*Finding, error) {
	o := objectAs("service", s)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return found(Healthy, OutsideCluster, fmt.Sprintf("%s is a DNS alias of %s; whether that answers depends on what is outside the cluster",
			o, s.Spec.ExternalName)).
			saw(o.String()+" .spec.externalName", s.Spec.ExternalName), nil
	}
	f, err := explainService(ctx, r, onlyPort(s, q.Port))
	if err != nil {
		return nil, err
	}
	if f.Status != Healthy && f.Code != LoadBalancerPending { // pods need no load balancer
		return f.under(q.From.Object(), o), nil
	}
	if f := servicePort(q, s, o); f != nil {
		return f, nil
	}
	if f := r.names(ctx, q, from, o); f != nil {
		return f, nil
	}
	to, err := r.destinations(ctx, q, s)
	if err != nil {
		return found(Healthy, Reachable, fmt.Sprintf("%s has ready endpoints; their pods cannot be read", o)).do(err.Error()), nil
	}
	return r.path(ctx, q, from, to), nil
}

// onlyPort returns a Service with only the requested port, if it has it: another one may lead nowhere.
func onlyPort(s *corev1.Service, port int32) *corev1.Service {
	for _, p := range s.Spec.Ports {
		if p.Port == port {
			s = s.DeepCopy()
			s.Spec.Ports = []corev1.ServicePort{p}
			return s
		}
	}
	return s
}

// servicePort explains a question about a port that the Service does not have.
func servicePort(q Reach, s *corev1.Service, o Object) *Finding {
	if q.Port == 0 || slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == q.Port }) {
		return nil
	}
	var has []string
	f := broken(PortNotServed, "")
	for _, p := range s.Spec.Ports {
		has = append(has, fmt.Sprintf("%d -> %s/%s", p.Port, p.TargetPort.String(), p.Protocol))
		if p.TargetPort.IntVal == q.Port {
			f.do(fmt.Sprintf("Connect to port %d: %d is the port of the pods behind it.", p.Port, q.Port))
		}
	}
	f.Cause = fmt.Sprintf("%s has no port %d, it has %s", o, q.Port, strings.Join(has, ", "))
	if s.Spec.ClusterIP == corev1.ClusterIPNone && len(f.Remedy) > 0 {
		return nil // a headless Service is its pods' addresses, and so their ports
	}
	if len(f.Remedy) == 0 {
		f.do(fmt.Sprintf("Connect to a port that it has, or add %d to its ports.", q.Port))
	}
	return f.saw(o.String()+" .spec.ports", strings.Join(has, ", "))
}

// names explains a pod that cannot resolve the names of Services.
func (r *Reader) names(ctx context.Context, q Reach, from *corev1.Pod, o Object) *Finding {
	pod := podObject(from)
	policy := from.Spec.DNSPolicy
	if policy == corev1.DNSDefault || from.Spec.HostNetwork && policy == corev1.DNSClusterFirst {
		why := "dnsPolicy " + string(policy)
		if policy == corev1.DNSClusterFirst {
			// Source: pkg/kubelet/network/dns, getPodDNSType
			why = "hostNetwork, with which dnsPolicy ClusterFirst means Default"
		}
		f := broken(NoClusterDNS, fmt.Sprintf("%s does not use the cluster's DNS (%s), so it cannot resolve the name of %s; its address works",
			pod, why, o))
		f.saw(pod.String()+" .spec.dnsPolicy", string(policy))
		return f.do(recreate(from, "Set dnsPolicy: ClusterFirstWithHostNet"))
	}
	dns, err := r.Service(ctx, metav1.NamespaceSystem, names.DNSService)
	if err != nil || policy == corev1.DNSNone {
		return nil
	}
	if ready, _, err := r.endpoints(ctx, dns); err == nil && ready == 0 {
		return broken(ClusterDNSDown, fmt.Sprintf("the cluster's DNS has no ready endpoint, so the name of %s cannot be resolved", o)).
			saw("endpointslices of service/kube-dns in namespace kube-system", "none is ready").
			do("Is the component dns disabled on all nodes? Then your DNS server must serve kube-dns.")
	}
	return nil
}

// destination is a pod, and the ports of it that are meant.
type destination struct {
	pod   *corev1.Pod
	ports []int32
}

// destinations are the pods of a Service's ready endpoints with the ports that its ports lead to. Only TCP is known.
func (r *Reader) destinations(ctx context.Context, q Reach, s *corev1.Service) ([]destination, error) {
	endpoints, err := r.EndpointSlices(ctx, s)
	if err != nil {
		return nil, err
	}
	names := map[string]bool{} // of the ports that are meant
	for _, p := range s.Spec.Ports {
		if q.Port == 0 || p.Port == q.Port || p.TargetPort == intstr.FromInt32(q.Port) {
			names[p.Name] = true
		}
	}
	var all []destination
	for _, slice := range endpoints {
		var ports []int32
		for _, p := range slice.Ports {
			if p.Port != nil && (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) && (p.Name == nil || names[*p.Name]) {
				ports = append(ports, *p.Port)
			}
		}
		for _, e := range slice.Endpoints {
			if !endpointReady(e) || e.TargetRef == nil || e.TargetRef.Kind != "Pod" {
				continue
			}
			if slices.ContainsFunc(all, func(d destination) bool { return d.pod.Name == e.TargetRef.Name }) {
				continue // of the other family
			}
			pod, err := r.Pod(ctx, s.Namespace, e.TargetRef.Name)
			if err != nil {
				continue
			}
			all = append(all, destination{pod, ports})
		}
	}
	return all, nil
}

// path explains what stands between a pod and pods that run: nodes without a pod network, and ports where nothing
// listens.
func (r *Reader) path(ctx context.Context, q Reach, from *corev1.Pod, to []destination) *Finding {
	f := found(Healthy, Reachable, fmt.Sprintf("nothing in the API keeps %s from reaching %s", q.From.Object(), q.To.Object()))
	nodes := []string{from.Spec.NodeName}
	for _, d := range to {
		nodes = append(nodes, d.pod.Spec.NodeName)
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	for _, name := range nodes {
		node, err := r.Node(ctx, name)
		if err != nil {
			continue
		}
		if c := nodeCondition(node, corev1.NodeNetworkUnavailable); c != nil && c.Status == corev1.ConditionTrue {
			return broken(NodeNetworkDown, fmt.Sprintf("node %s has no network for pods: %s", name, firstOf(c.Message, c.Reason))).
				since(c.LastTransitionTime).
				sawAt("node/"+name+" .status.conditions[NetworkUnavailable]", "True, "+c.Reason, c.LastTransitionTime).
				under(q.From.Object(), nodeObject(node)).
				do("The network component of that node, or the cluster's CNI, sets the condition: its log says why.")
		}
		addresses := firstOf(strings.Join(node.Spec.PodCIDRs, ", "), "not from this cluster's CIDRs")
		f.saw("node/"+name, "Ready; addresses of its pods: "+addresses)
	}
	if broken := r.policies(ctx, f, q, from, to); broken != nil {
		return broken
	}
	connects := 0
	for _, d := range to {
		for _, port := range d.ports {
			if connects++; connects > maxConnects {
				break
			}
			if broken := r.connect(ctx, f, q, d.pod, port); broken != nil {
				return broken
			}
		}
	}
	if q.To.Namespace != q.From.Namespace && q.To.Kind.Kind == "Service" {
		f.do(fmt.Sprintf("From namespace %s its name is %s.%s.", q.From.Namespace, q.To.Name, q.To.Namespace))
	}
	if len(nodes) > 1 {
		f.do("The API does not show packets: if small answers arrive and large ones hang, compare the MTU of the nodes (docs/networking.md).")
	}
	return f
}

// connect lets the API server connect to a port of a pod. It returns a finding if nothing listens there, and adds what
// it saw to f otherwise.
//
// Source: k8s.io/apimachinery/pkg/util/proxy: "error trying to reach service: " before what net.Dial says
func (r *Reader) connect(ctx context.Context, f *Finding, q Reach, pod *corev1.Pod, port int32) *Finding {
	o, source := podObject(pod), fmt.Sprintf("connection of the API server to pod/%s, port %d", pod.Name, port)
	err := r.Connect(ctx, pod.Namespace, pod.Name, port)
	var status apierrors.APIStatus
	text := ""
	if errors.As(err, &status) {
		text = status.Status().Message
	}
	failed := strings.Contains(text, "error trying to reach service")
	switch {
	case apierrors.IsForbidden(err) && strings.Contains(text, "pods/proxy"):
		r.unread = append(r.unread, fmt.Sprintf("you may not let the API server connect to pods in namespace %s (get pods/proxy), "+
			"so it is unknown whether a program listens", pod.Namespace))
		return nil
	case failed && strings.Contains(text, "connection refused"):
		refused := broken(NobodyListens, fmt.Sprintf("nothing listens at port %d of %s: it refuses connections", port, o)).saw(source, text)
		declared := declaredPorts(pod)
		refused.saw(o.String()+" .spec.containers[].ports", firstOf(strings.Join(declared, ", "), "none declared"))
		if q.To.Kind.Kind == "Service" {
			refused.saw(q.To.Object().String()+" .spec.ports[].targetPort", fmt.Sprint(port))
		}
		return refused.not(PodsNotReady, "the pod is not ready", "it is").
			do("Make the program listen at this port on all addresses of the pod (0.0.0.0 or ::, not 127.0.0.1), or correct the port.").
			under(q.From.Object(), o)
	case failed && lost(text) && r.guarded[o]:
		f.saw(source, "no answer, which says nothing about other connections: the pod's network policies may shut out the API server")
	case failed && lost(text):
		return broken(PodUnreachable, fmt.Sprintf("%s on node %s does not answer at port %d, not even the API server", o, pod.Spec.NodeName, port)).
			saw(source, text).
			do("Packets get lost between the nodes: does a firewall block the pod network, and do all nodes have a route to that one (docs/networking.md)?").
			under(q.From.Object(), o)
	case status != nil && !failed:
		f.saw(source, fmt.Sprintf("something listens: HTTP %d", status.Status().Code))
	case err != nil:
		f.saw(source, "something listens, but does not speak HTTP: "+oneline.Shorten(firstOf(text, err.Error()), 200))
	default:
		f.saw(source, "something listens")
	}
	return nil
}

// lost reports whether a connection failed because packets did not arrive.
func lost(text string) bool {
	return strings.Contains(text, "timeout") || strings.Contains(text, "no route") || strings.Contains(text, "unreachable")
}

// declaredPorts are the ports that a pod's containers declare.
func declaredPorts(pod *corev1.Pod) []string {
	var all []string
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			all = append(all, fmt.Sprintf("%s %d/%s", c.Name, p.ContainerPort, p.Protocol))
		}
	}
	return all
}
