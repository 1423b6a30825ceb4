package why

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// runs is a pod of app that runs and is Ready on node n.
func runs(name, app string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid-pod", Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "n", DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.42.0.9",
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: before(time.Minute)}}},
	}
}

// webService has port 80, which leads to port 8080 of pod/web.
func webService() (*corev1.Service, *discoveryv1.EndpointSlice) {
	port, name := int32(8080), ""
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.43.0.8", Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		}}, &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			Ports:      []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
			Endpoints:  []discoveryv1.Endpoint{{Addresses: []string{"10.42.0.9"}, TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "web"}}},
		}
}

func proxyError(text string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{Code: http.StatusServiceUnavailable, Reason: metav1.StatusReasonServiceUnavailable, Message: "error trying to reach service: " + text}}
}

// TestExplainReach: what is reported to stand between pod/shop and service/web.
func TestExplainReach(t *testing.T) {
	ready := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.42.0.0/24"}},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
	type world struct {
		from, web *corev1.Pod
		service   *corev1.Service
		node      *corev1.Node
		others    []runtime.Object
		port      int32
		connect   error
	}
	for name, c := range map[string]struct {
		change func(w *world)
		status Status
		code   Code
		says   string // in cause, evidence, remedy or what was ruled out
	}{
		"all well":           {func(*world) {}, Healthy, Reachable, "something listens"},
		"the Service's port": {func(w *world) { w.port = 80 }, Healthy, Reachable, "something listens"},
		"the pods' port":     {func(w *world) { w.port = 8080 }, Broken, PortNotServed, "Connect to port 80: 8080 is the port of the pods behind it"},
		"no such port":       {func(w *world) { w.port = 99 }, Broken, PortNotServed, "80 -> 8080/TCP"},
		"headless": {func(w *world) {
			w.service.Spec.ClusterIP, w.port = corev1.ClusterIPNone, 8080
		}, Healthy, Reachable, "something listens"},
		"another port leads nowhere": {func(w *world) {
			w.port, w.service.Spec.Ports = 80, append(w.service.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 90, TargetPort: intstr.FromString("metrics")})
		}, Healthy, Reachable, "something listens"},
		"this port leads nowhere": {func(w *world) {
			w.port, w.service.Spec.Ports = 90, append(w.service.Spec.Ports, corev1.ServicePort{Name: "metrics", Port: 90, TargetPort: intstr.FromString("metrics")})
		}, Broken, TargetPortMissing, "metrics"},
		"nobody listens": {func(w *world) { w.connect = proxyError("dial tcp 10.42.0.9:8080: connect: connection refused") }, Broken, NobodyListens, "refuses connections"},
		"lost packets":   {func(w *world) { w.connect = proxyError("dial tcp 10.42.0.9:8080: i/o timeout") }, Broken, PodUnreachable, "docs/networking.md"},
		"lost packets of a guarded pod": {func(w *world) {
			w.connect = proxyError("dial tcp 10.42.0.9:8080: i/o timeout")
			w.from.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.8"}}
			w.others = append(w.others, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}}, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "shops"},
				Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}}})
		}, Healthy, Reachable, "may shut out the API server"},
		"not HTTP": {func(w *world) { w.connect = proxyError("malformed HTTP response") }, Healthy, Reachable, "does not speak HTTP"},
		"HTTP 404": {func(w *world) { w.connect = &apierrors.StatusError{ErrStatus: metav1.Status{Code: 404}} }, Healthy, Reachable, "HTTP 404"},
		"may not connect": {func(w *world) {
			w.connect = apierrors.NewForbidden(corev1.Resource("pods/proxy"), "web", errors.New(`cannot get resource "pods/proxy"`))
		}, Healthy, Reachable, "you may not let the API server connect"},
		"host's resolver": {func(w *world) { w.from.Spec.HostNetwork = true }, Broken, NoClusterDNS, "ClusterFirstWithHostNet"},
		"host's network, the cluster's resolver": {func(w *world) {
			w.from.Spec.HostNetwork, w.from.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
		}, Healthy, Reachable, ""},
		"no DNS": {func(w *world) {
			w.others = append(w.others, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-dns"}})
		}, Broken, ClusterDNSDown, ""},
		"selector": {func(w *world) { w.service.Spec.Selector = map[string]string{"app": "other"}; w.service.Name = "web2" }, Broken, SelectorMatchesNothing, ""},
		"alias": {func(w *world) {
			w.service.Spec.Type, w.service.Spec.ExternalName = corev1.ServiceTypeExternalName, "db.example.org"
		}, Healthy, OutsideCluster, "db.example.org"},
		"the pod ended": {func(w *world) { w.from.Status.Phase = corev1.PodSucceeded }, Broken, PodNotRunning, ""},
		"no pod network": {func(w *world) {
			w.node.Status.Conditions = append(w.node.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRoute"})
		}, Broken, NodeNetworkDown, "NoRoute"},
		"policy": {func(w *world) {
			w.others = append(w.others, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "deny"},
				Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}})
		}, Broken, PolicyForbids, "no rule of NetworkPolicy ns/deny matches"},
		"policy of the cluster": {func(w *world) {
			w.others = append(w.others, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy", "metadata": map[string]any{"name": "alone"},
				"spec": map[string]any{
					"tier": "Admin", "priority": int64(1), "subject": map[string]any{"namespaces": map[string]any{}},
					"egress": []any{map[string]any{"name": "all", "action": "Deny", "to": []any{map[string]any{"networks": []any{"10.42.0.0/16"}}}}},
				},
			}})
		}, Broken, PolicyForbids, "Change egress rule 1 (all) of ClusterNetworkPolicy alone"},
		"policy of others": {func(w *world) {
			w.others = append(w.others, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "deny"},
				Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}}})
		}, Healthy, Reachable, "none selects these pods"},
	} {
		t.Run(name, func(t *testing.T) {
			w := world{from: runs("shop", "shop"), web: runs("web", "web"), node: ready.DeepCopy()}
			service, slice := webService()
			w.service = service
			c.change(&w)
			r, _ := reader(t, append([]runtime.Object{w.from, w.web, w.service, slice, w.node}, w.others...)...)
			connected := false
			r.Connect = func(_ context.Context, _, pod string, port int32) error {
				connected = pod == "web" && port == 8080
				return w.connect
			}
			a, err := ExplainReach(t.Context(), r, Reach{
				From: podTarget("shop"),
				To:   target(corev1.SchemeGroupVersion.WithKind("Service"), "services", "ns", w.service.Name),
				Port: w.port,
			})
			if err != nil {
				t.Fatal(err)
			}
			var all strings.Builder
			if err := a.WriteText(&all, Style{Width: 10000, Now: now}); err != nil {
				t.Fatal(err)
			}
			if a.Status != c.status || a.Code != c.code || !strings.Contains(all.String(), c.says) {
				t.Errorf("want %s %s with %q:\n%s", c.status, c.code, c.says, all.String())
			}
			if a.Code == Reachable && !connected {
				t.Error("the port of the pod was not tried")
			}
		})
	}
}
