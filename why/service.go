package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func explainService(ctx context.Context, r *Reader, s *corev1.Service) (*Finding, error) {
	o := objectAs("service", s)
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return found(Healthy, OK, fmt.Sprintf("%s is a DNS alias of %s: it has no endpoints", o, s.Spec.ExternalName)).
			saw(o.String()+" .spec.externalName", s.Spec.ExternalName), nil
	}
	ready, unready, err := r.endpoints(ctx, s)
	if err != nil {
		return found(Healthy, OK, fmt.Sprintf("%s exists; its endpoints cannot be read", o)).
			saw("LIST endpointslices", err.Error()), nil
	}
	counts := fmt.Sprintf("%d ready, %d not ready", ready, unready)
	f := r.withoutEndpoints(ctx, s, ready)
	if f == nil && s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) == 0 {
		f = r.withoutAddress(ctx, s)
	}
	if f == nil {
		address := ", " + firstOf(s.Spec.ClusterIP, "no address")
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			address = ", headless"
		}
		f = found(Healthy, OK, fmt.Sprintf("%s has %d ready endpoints%s", o, ready, address))
	}
	return f.saw("endpointslices of "+o.String(), counts), nil
}

// endpoints counts the endpoints of a Service, each address once.
func (r *Reader) endpoints(ctx context.Context, s *corev1.Service) (ready, unready int, err error) {
	all, err := r.EndpointSlices(ctx, s)
	if err != nil {
		return 0, 0, err
	}
	addresses := map[string]bool{}
	for _, slice := range all {
		for _, e := range slice.Endpoints {
			for _, a := range e.Addresses {
				addresses[a] = addresses[a] || endpointReady(e)
			}
		}
	}
	for _, ok := range addresses {
		ready += boolInt(ok)
	}
	return ready, len(addresses) - ready, nil
}

// endpointReady reports whether an endpoint is ready.
//
// Source: the field's documentation: nil is true
func endpointReady(e discoveryv1.Endpoint) bool {
	return e.Conditions.Ready == nil || *e.Conditions.Ready
}

// withoutEndpoints explains a Service, or a port of it, that routes to nothing; nil: all route somewhere.
func (r *Reader) withoutEndpoints(ctx context.Context, s *corev1.Service, ready int) *Finding {
	o := objectAs("service", s)
	if len(s.Spec.Selector) == 0 {
		if ready > 0 {
			return nil
		}
		return broken(NoSelector, fmt.Sprintf("%s has no selector and no endpoints: it routes to nothing", o)).saw(o.String()+" .spec.selector", "not set").
			do("Set a selector, or create an EndpointSlice with the label " + discoveryv1.LabelServiceName + "=" + s.Name + ".")
	}
	selector := metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
	pods, err := r.Pods(ctx, s.Namespace, selector)
	if ready > 0 {
		// A pod that is Ready is an endpoint, also without the port.
		return portMissing(o, s, running(pods))
	}
	if err != nil {
		return broken(NoEndpoints, fmt.Sprintf("%s has no ready endpoint", o)).do(kubectl(s.Namespace, "get pods -l %s", selector))
	}
	if len(pods) == 0 {
		f := broken(SelectorMatchesNothing, fmt.Sprintf("%s routes to nothing: no pod in namespace %s has the labels %s", o, s.Namespace, selector))
		f.saw(o.String()+" .spec.selector", selector)
		if !r.nearLabels(ctx, f, s) {
			f.saw("LIST pods", "none with any of these labels")
		}
		return f.not(PodsNotReady, "the pods are not ready", "there are none").
			do("Correct the selector or the labels of the pods: they must match.", kubectl(s.Namespace, "get pods --show-labels"))
	}
	alive := running(pods)
	if f := portMissing(o, s, alive); f != nil {
		return f
	}
	alive = unreadyFirst(alive)
	if f, pod := r.worst(ctx, alive); f != nil {
		return f.saw(o.String()+" .spec.selector", fmt.Sprintf("%s: %d pods, none Ready", selector, len(alive))).under(o, podObject(pod))
	}
	if len(alive) == 0 {
		return broken(PodsNotReady, fmt.Sprintf("%s has no endpoint: the %d pods that it selects have ended or are being deleted", o, len(pods))).
			saw(o.String()+" .spec.selector", selector).do("Start pods with these labels.")
	}
	if i := slices.IndexFunc(alive, func(p corev1.Pod) bool {
		c := podCondition(&p, corev1.PodReady)
		return c != nil && r.age(c.LastTransitionTime) < fresh
	}); i >= 0 {
		f := found(Progressing, InProgress, fmt.Sprintf("in progress: pod/%s became Ready, and its endpoint of %s is about to appear", alive[i].Name, o))
		return f.sawCondition(&alive[i], corev1.PodReady)
	}
	return broken(NoEndpoints, fmt.Sprintf("%s has no ready endpoint, though %s have no fault", o, podNames(alive))).
		saw(o.String()+" .spec.selector", selector).
		do("The controller of EndpointSlices may not run, or the pods have no address of the Service's family.",
			kubectl(s.Namespace, "get endpointslices -l %s=%s -o yaml", discoveryv1.LabelServiceName, s.Name))
}

// running returns the pods that have neither ended nor are being deleted.
func running(pods []corev1.Pod) []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool {
		return p.DeletionTimestamp != nil || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// nearLabels adds pods whose labels almost match a Service's selector.
func (r *Reader) nearLabels(ctx context.Context, f *Finding, s *corev1.Service) bool {
	all, err := r.Pods(ctx, s.Namespace, "")
	if err != nil {
		return true
	}
	told := 0
	for _, pod := range all {
		var differs []string
		near := false
		for key, want := range s.Spec.Selector {
			got, has := pod.Labels[key]
			switch {
			case has && got == want:
				near = true
			case has:
				near = true
				differs = append(differs, fmt.Sprintf("%s=%s, not %s", key, got, want))
			default:
				value := "no label " + key
				for k, v := range pod.Labels {
					if v == want || strings.EqualFold(k, key) {
						near, value = true, fmt.Sprintf("%s=%s, no label %s", k, v, key)
					}
				}
				differs = append(differs, value)
			}
		}
		if near && told < 3 {
			told++
			slices.Sort(differs)
			f.saw("pod/"+pod.Name+" .metadata.labels", "almost match: "+strings.Join(differs, "; "))
		}
	}
	return told > 0
}

// portMissing explains a Service whose targetPort is a name that none of its pods has.
//
// Source: FindPort in k8s.io/kubernetes/pkg/api/v1/pod: the protocol must match too
func portMissing(o Object, s *corev1.Service, pods []corev1.Pod) *Finding {
	for _, port := range s.Spec.Ports {
		if port.TargetPort.Type != intstr.String || len(pods) == 0 {
			continue
		}
		var have []string
		found := false
		for _, pod := range pods {
			for _, c := range slices.Concat(pod.Spec.Containers, pod.Spec.InitContainers) {
				for _, p := range c.Ports {
					found = found || p.Name == port.TargetPort.StrVal && p.Protocol == port.Protocol
					have = append(have, fmt.Sprintf("%s (%d/%s)", firstOf(p.Name, "without a name"), p.ContainerPort, p.Protocol))
				}
			}
		}
		if found {
			continue
		}
		slices.Sort(have)
		have = slices.Compact(have)
		return broken(TargetPortMissing, fmt.Sprintf("port %d of %s routes to nothing: its targetPort is named %s, "+
			"but no container port of its pods has that name", port.Port, o, port.TargetPort.StrVal)).
			saw(fmt.Sprintf("%s .spec.ports[%d].targetPort", o, port.Port), port.TargetPort.StrVal).
			saw("pod/"+pods[0].Name+" .spec.containers[].ports", firstOf(strings.Join(have, ", "), "none")).
			not(SelectorMatchesNothing, "the selector matches nothing", fmt.Sprintf("it matches %s", podNames(pods))).
			do("Name the container port " + port.TargetPort.StrVal + ", or set targetPort to its number.")
	}
	return nil
}

// withoutAddress explains a Service of type LoadBalancer that has no address.
func (r *Reader) withoutAddress(ctx context.Context, s *corev1.Service) *Finding {
	o := objectAs("service", s)
	e := r.LastEvent(ctx, s, s.CreationTimestamp, "PortConflict", "HostPort", "NoAddress", "LoadBalancerReady", "SyncLoadBalancerFailed")
	if e != nil && e.Type == corev1.EventTypeWarning {
		return broken(LoadBalancerPending, fmt.Sprintf("%s has no address of a load balancer: %s", o, firstOf(e.Message))).
			since(e.FirstTimestamp).sawEvent(e).
			saw(o.String()+" .status.loadBalancer", "no ingress").not(NoEndpoints, "it has no endpoints", "it has").
			do("Free what the message names, or change the Service's port. Inside the cluster the Service works.")
	}
	if class := s.Spec.LoadBalancerClass; class != nil && r.age(s.CreationTimestamp) > fresh {
		return broken(LoadBalancerPending, fmt.Sprintf("%s has no address: no load balancer has answered for its loadBalancerClass %s", o, *class)).
			saw(o.String()+" .spec.loadBalancerClass", *class).saw(o.String()+" .status.loadBalancer", "no ingress").
			do("Install the load balancer of that class. A Service's class cannot be changed: " +
				"to use the cluster's load balancer, create the Service again without a class.")
	}
	if r.age(s.CreationTimestamp) > retried {
		return broken(LoadBalancerPending, fmt.Sprintf("%s has no address: no load balancer has answered", o)).
			saw(o.String()+" .status.loadBalancer", "no ingress").
			do("Enable the component servicelb, or install a load balancer.")
	}
	return found(Progressing, InProgress, fmt.Sprintf("in progress: %s waits for the address of its load balancer", o)).
		saw(o.String()+" .status.loadBalancer", "no ingress")
}
