package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// upstreamPolicy is upstream's RBAC bootstrap policy. Upstream also converts roles from before Kubernetes 1.14
// (ClusterRolesToAggregate, ClusterRoleBindingsToSplit); no Kubelith cluster is that old.
func upstreamPolicy() []runtime.Object {
	var all []runtime.Object
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		all = append(all, &role)
	}
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		all = append(all, &binding)
	}
	each(bootstrappolicy.NamespaceRoles(), func(namespace string, role rbacv1.Role) {
		role.Namespace = namespace
		all = append(all, &role)
	})
	each(bootstrappolicy.NamespaceRoleBindings(), func(namespace string, binding rbacv1.RoleBinding) {
		binding.Namespace = namespace
		all = append(all, &binding)
	})
	return all
}

// priorityClasses are system-node-critical and system-cluster-critical.
func priorityClasses() []runtime.Object {
	var all []runtime.Object
	for _, class := range schedulingv1.SystemPriorityClasses() {
		all = append(all, class)
	}
	return all
}

func each[T any](byNamespace map[string][]T, f func(namespace string, object T)) {
	for namespace, objects := range byNamespace {
		for _, object := range objects {
			f(namespace, object)
		}
	}
}
