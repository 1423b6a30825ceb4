package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// allowCARotation lets the rotation of the CAs keep its state, read what agents report and correct what upstream
// publishes. Servers get the new CAs from each other; the handler checks which server calls. Agents read which CAs to
// trust.
func allowCARotation() []runtime.Object {
	self, nodes := subject(rbacv1.UserKind, client.CARotation), subject(rbacv1.GroupKind, user.NodesGroup)
	maps := func(names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: verbs}
	}
	return slices.Concat(
		clusterRole(client.CARotation, self,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"list"}},
			// So that the API server reads the kubelets' CAs again.
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/proxy"}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get"}}),
		role(metav1.NamespaceSystem, client.CARotation, []rbacv1.Subject{self},
			maps([]string{names.CARotation}, "get", "list", "watch", "patch", "update"),
			maps([]string{"extension-apiserver-authentication"}, "get", "update"),
			maps(nil, "create")),
		role(metav1.NamespaceSystem, "kubelith:ca-rotation-state", []rbacv1.Subject{nodes},
			maps([]string{names.CARotation}, "get", "list", "watch")),
		clusterRole("kubelith:ca-trust", nodes,
			rbacv1.PolicyRule{NonResourceURLs: []string{names.CATrustPath}, Verbs: []string{"get"}}),
		clusterRole("kubelith:ca-keys", subject(rbacv1.GroupKind, names.Servers),
			rbacv1.PolicyRule{NonResourceURLs: []string{names.CAKeyPath}, Verbs: []string{"post"}}))
}
