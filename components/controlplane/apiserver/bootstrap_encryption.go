package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// allowEncryption lets the rotation of keys write Secrets again, and keep its state. Servers get keys from each other;
// the handler checks which server calls.
func allowEncryption() []runtime.Object {
	self := subject(rbacv1.UserKind, client.Encryption)
	maps := func(names []string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: names, Verbs: verbs}
	}
	return slices.Concat(
		clusterRole(client.Encryption, self,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"get", "update"}},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get"}}),
		role(metav1.NamespaceSystem, client.Encryption, []rbacv1.Subject{self},
			maps([]string{names.EncryptionState}, "get", "list", "watch", "patch", "update"),
			maps(nil, "create")),
		clusterRole("kubelith:encryption-keys", subject(rbacv1.GroupKind, names.Servers),
			rbacv1.PolicyRule{NonResourceURLs: []string{names.EncryptionKeyPath}, Verbs: []string{"post"}}))
}
