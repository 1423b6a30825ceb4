package apiserver

import (
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"kubelith.io/kubelith/components/client"
)

// TestBootstrapObjects: a ready apiserver has upstream's policy and what the composition needs; a later start makes what
// is missing, and nothing else.
func TestBootstrapObjects(t *testing.T) {
	ctx, cs := t.Context(), admin(t)
	missing := func(want int) {
		t.Helper()
		todo, err := missingPolicy(ctx, cs)
		if err != nil || len(todo) != want {
			t.Fatalf("%d objects of the policy are missing, want %d: %v", len(todo), want, err)
		}
	}
	missing(0)
	for what, get := range map[string]func() error{
		"the loopback's flow schema": func() error {
			_, err := cs.FlowcontrolV1().FlowSchemas().Get(ctx, "kubelith-loopback", metav1.GetOptions{})
			return err
		},
		"the kubelet client's binding": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, "kubelith:apiserver-kubelet-client", metav1.GetOptions{})
			return err
		},
		"DNS's binding": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, client.DNS, metav1.GetOptions{})
			return err
		},
		"DNS's binding in kube-system": func() error {
			_, err := cs.RbacV1().RoleBindings("kube-system").Get(ctx, client.DNS, metav1.GetOptions{})
			return err
		},
		"the binding of the manifests": func() error {
			_, err := cs.RbacV1().ClusterRoleBindings().Get(ctx, client.Manifests, metav1.GetOptions{})
			return err
		},
		"the critical priority": func() error {
			_, err := cs.SchedulingV1().PriorityClasses().Get(ctx, "system-node-critical", metav1.GetOptions{})
			return err
		},
		"a Role of kube-system, upstream": func() error {
			_, err := cs.RbacV1().Roles("kube-system").Get(ctx, "extension-apiserver-authentication-reader", metav1.GetOptions{})
			return err
		},
	} {
		// Upstream's own hook, for which ready does not wait, makes what needs the namespace kube-system.
		var err error
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			if err = get(); err == nil || !apierrors.IsNotFound(err) || time.Now().After(deadline) {
				break
			}
		}
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	role, binding := bootstrappolicy.ControllerRoles()[0].Name, bootstrappolicy.ControllerRoleBindings()[0].Name
	if err := cs.RbacV1().ClusterRoles().Delete(ctx, role, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cs.RbacV1().ClusterRoleBindings().Delete(ctx, binding, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	missing(2 + len(namespacedPolicy()))
	if err := createAll(ctx, cs); err != nil {
		t.Fatalf("objects that exist already are no error: %v", err)
	}
	missing(0)
	if _, err := cs.RbacV1().ClusterRoles().Get(ctx, role, metav1.GetOptions{}); err != nil {
		t.Errorf("the deleted role: %v", err)
	}
	// What may not be written is an error, which bootstrap tries again.
	if err := createAll(ctx, clientFor(t, serve(t).Config(client.Scheduler))); !apierrors.IsForbidden(err) {
		t.Errorf("as somebody without rights: %v", err)
	}
}
