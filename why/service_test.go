package why

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	clienttesting "k8s.io/client-go/testing"
)

func TestServices(t *testing.T) {
	none := corev1.ContainerState{}
	ready, crash := state(runsFor(40*time.Second), none, 0, true), state(waitsFor("CrashLoopBackOff", "back-off"), ended("Error", 3, time.Second, 5*time.Second), 4, false)
	service := func(change func(*corev1.Service)) *corev1.Service {
		s := &corev1.Service{ObjectMeta: meta("shop"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9", Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: "TCP", TargetPort: intstr.FromString("http")}}}}
		if change != nil {
			change(s)
		}
		return s
	}
	port := func(name string, protocol corev1.Protocol) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: name, ContainerPort: 8080, Protocol: protocol}}
		}
	}
	pod := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		return podOf("ReplicaSet", "web", "web-1", all(changes...))
	}
	slice := func(ok bool) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shop-1", Labels: map[string]string{discoveryv1.LabelServiceName: "shop"}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.5"}, Conditions: discoveryv1.EndpointConditions{Ready: &ok}}}}
	}
	balanced := func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer }
	class := "example.org/lb"
	conflict := event("shop", "uid-shop", "Warning", "PortConflict", "port 80/TCP of node vm belongs to another Service", time.Second)
	for name, c := range map[string]struct {
		service *corev1.Service
		others  []runtime.Object
		status  Status
		code    Code
		proof   string
	}{
		"endpoints":              {service(nil), []runtime.Object{slice(true), pod(ready, port("http", "TCP"))}, Healthy, OK, "1 ready, 0 not ready"},
		"no such pods":           {service(nil), nil, Broken, SelectorMatchesNothing, "app=web"},
		"labels almost match":    {service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "shop"} }), []runtime.Object{pod(ready)}, Broken, SelectorMatchesNothing, "app=web, not shop"},
		"another key":            {service(func(s *corev1.Service) { s.Spec.Selector = map[string]string{"name": "web"} }), []runtime.Object{pod(ready)}, Broken, SelectorMatchesNothing, "app=web, no label name"},
		"no such port":           {service(nil), []runtime.Object{slice(false), pod(ready, port("web", "TCP"))}, Broken, TargetPortMissing, "web (8080/TCP)"},
		"no such port, Ready":    {service(nil), []runtime.Object{slice(true), pod(ready, port("web", "TCP"))}, Broken, TargetPortMissing, "web (8080/TCP)"},
		"a port of UDP":          {service(nil), []runtime.Object{pod(ready, port("http", "UDP"))}, Broken, TargetPortMissing, "http (8080/UDP)"},
		"a number needs no name": {service(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8080) }), []runtime.Object{slice(true), pod(ready)}, Healthy, OK, "1 ready"},
		"no endpoint of a pod":   {service(nil), []runtime.Object{slice(false), pod(ready, port("http", "TCP"))}, Broken, NoEndpoints, "app=web"},
		"pods crash":             {service(nil), []runtime.Object{slice(false), pod(crash, port("http", "TCP"))}, Broken, CrashLoop, "1 pods, none Ready"},
		"one of two crashes":     {service(nil), []runtime.Object{slice(true), pod(crash, port("http", "TCP"))}, Healthy, OK, "1 ready"},
		"pods have ended":        {service(nil), []runtime.Object{pod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded })}, Broken, PodsNotReady, "app=web"},
		"nothing at all":         {service(func(s *corev1.Service) { s.Spec.Selector = nil }), nil, Broken, NoSelector, "not set"},
		"made by hand":           {service(func(s *corev1.Service) { s.Spec.Selector = nil }), []runtime.Object{slice(true)}, Healthy, OK, "1 ready"},
		"an alias": {service(func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		}), nil, Healthy, OK, "example.org"},
		"headless":          {service(func(s *corev1.Service) { s.Spec.ClusterIP = "None" }), []runtime.Object{slice(true)}, Healthy, OK, "1 ready"},
		"the port is taken": {service(balanced), []runtime.Object{slice(true), conflict}, Broken, LoadBalancerPending, "belongs to another Service"},
		"the port was taken": {service(func(s *corev1.Service) {
			balanced(s)
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "10.0.0.1"}}
		}), []runtime.Object{slice(true), conflict}, Healthy, OK, "1 ready"},
		"another's class": {service(func(s *corev1.Service) { balanced(s); s.Spec.LoadBalancerClass = &class }), []runtime.Object{slice(true)}, Broken, LoadBalancerPending, class},
		"no address yet":  {service(balanced), []runtime.Object{slice(true)}, Progressing, InProgress, "no ingress"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{c.service, readyNode("node-1")}, c.others...)...)
			a := ask(t, r, target(corev1.SchemeGroupVersion.WithKind("Service"), "services", "ns", "shop"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
		})
	}
}

// TestEndpointsForbidden: a Service whose endpoints may not be read is not called broken.
func TestEndpointsForbidden(t *testing.T) {
	s := &corev1.Service{ObjectMeta: meta("shop"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9", Selector: map[string]string{"app": "web"}}}
	r, client := reader(t, s)
	client.PrependReactor("list", "endpointslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "endpointslices"}, "", errors.New("no"))
	})
	a := ask(t, r, target(corev1.SchemeGroupVersion.WithKind("Service"), "services", "ns", "shop"))
	if a.Status == Broken || len(a.Unread) != 1 {
		t.Errorf("got %+v", a)
	}
}
