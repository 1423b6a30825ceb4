package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/client"
)

// TestServiceLBInMemory: the load balancer may write the status of a Service, and nothing else of it.
func TestServiceLBInMemory(t *testing.T) {
	ns := namespace(t, "servicelb-in-memory")
	ctx, cs := t.Context(), clientFor(t, serve(t).Config(client.ServiceLB))
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Port: 80}},
	}}
	service, err := admin(t).CoreV1().Services(ns).Create(ctx, service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(text string, subresources ...string) error {
		_, err := cs.CoreV1().Services(ns).Patch(ctx, "web", types.MergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	eventually(t, "write the status", func() error {
		return patch(`{"status":{"loadBalancer":{"ingress":[{"ip":"10.0.0.1"}]}}}`, "status")
	})
	if _, err := cs.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("list Services: %v", err)
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: "web.1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Service", Namespace: ns, Name: "web", UID: service.UID},
	}
	if _, err := cs.CoreV1().Events(ns).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		t.Errorf("create an Event: %v", err)
	}
	for what, err := range map[string]error{
		"changes the spec":  patch(`{"spec":{"ports":[{"port":81}]}}`),
		"deletes a Service": cs.CoreV1().Services(ns).Delete(ctx, "web", metav1.DeleteOptions{}),
		"reads a Secret":    func() error { _, err := cs.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{}); return err }(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("the load balancer %s: %v", what, err)
		}
	}
}
