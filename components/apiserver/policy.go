package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// missingPolicy returns what creates the objects of upstream's RBAC bootstrap
// policy that do not exist yet: all of them at the first start, none later.
func missingPolicy(ctx context.Context, cs kubernetes.Interface) ([]create, error) {
	roles, err := cs.RbacV1().ClusterRoles().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	bindings, err := cs.RbacV1().ClusterRoleBindings().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	haveRole, haveBinding := sets.New[string](), sets.New[string]()
	for i := range roles.Items {
		haveRole.Insert(roles.Items[i].Name)
	}
	for i := range bindings.Items {
		haveBinding.Insert(bindings.Items[i].Name)
	}

	var todo []create
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		if !haveRole.Has(role.Name) {
			todo = append(todo, func(ctx context.Context, cs kubernetes.Interface) error {
				_, err := cs.RbacV1().ClusterRoles().Create(ctx, &role, metav1.CreateOptions{})
				return err
			})
		}
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		if !haveBinding.Has(binding.Name) {
			todo = append(todo, func(ctx context.Context, cs kubernetes.Interface) error {
				_, err := cs.RbacV1().ClusterRoleBindings().Create(ctx, &binding, metav1.CreateOptions{})
				return err
			})
		}
	}
	if len(todo) == 0 {
		return nil, nil
	}
	return append(todo, namespacedPolicy()...), nil
}

// namespacedPolicy creates the Roles and RoleBindings of system namespaces,
// which the apiserver makes at the same time: a missing one is tried again.
func namespacedPolicy() []create {
	var todo []create
	each(bootstrappolicy.NamespaceRoles(), func(namespace string, role rbacv1.Role) {
		todo = append(todo, func(ctx context.Context, cs kubernetes.Interface) error {
			_, err := cs.RbacV1().Roles(namespace).Create(ctx, &role, metav1.CreateOptions{})
			return err
		})
	})
	each(bootstrappolicy.NamespaceRoleBindings(), func(namespace string, binding rbacv1.RoleBinding) {
		todo = append(todo, func(ctx context.Context, cs kubernetes.Interface) error {
			_, err := cs.RbacV1().RoleBindings(namespace).Create(ctx, &binding, metav1.CreateOptions{})
			return err
		})
	})
	return todo
}

// priorityClasses creates system-node-critical and system-cluster-critical.
func priorityClasses() []create {
	var todo []create
	for _, class := range schedulingv1.SystemPriorityClasses() {
		todo = append(todo, func(ctx context.Context, cs kubernetes.Interface) error {
			_, err := cs.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{})
			return err
		})
	}
	return todo
}

func each[T any](byNamespace map[string][]T, f func(namespace string, object T)) {
	for namespace, objects := range byNamespace {
		for _, object := range objects {
			f(namespace, object)
		}
	}
}
