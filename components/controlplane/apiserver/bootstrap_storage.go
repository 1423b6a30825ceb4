package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"kubelith.io/kubelith/base/client"
)

// storing returns the rights of the controllers of storage plugins: those of the sidecars external-provisioner,
// -attacher and -resizer (deploy/kubernetes/rbac.yaml of each), and the creation of the driver's objects. As with the
// sidecars, Secrets are not among them: an operator whose StorageClasses have Secrets grants them.
//
// On an agent the controllers use a separate name, which the node may impersonate (restriction.Impersonation), in a
// group with the rights that a node-local driver needs. restriction.Plugin limits which objects of others they may
// write.
func storing() []runtime.Object {
	read := []string{"get", "list", "watch"}
	core, storage, snapshots := []string{""}, []string{"storage.k8s.io"}, []string{"snapshot.storage.k8s.io"}
	with := func(more ...string) []string { return append(more, read...) }
	controllers, onAgents := subject(rbacv1.UserKind, client.Storage), subject(rbacv1.GroupKind, client.StorageNodes)
	capacity := rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csistoragecapacities"}, Verbs: with("create", "update", "patch", "delete")}
	// Events about claims, and about nodes.
	events := rbacv1.PolicyRule{APIGroups: core, Resources: []string{"events"}, Verbs: []string{"create", "update", "patch"}}
	return slices.Concat(
		clusterRole(client.Storage, controllers,
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumes"}, Verbs: with("create", "update", "patch", "delete")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims"}, Verbs: with("update", "patch")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims/status"}, Verbs: []string{"update", "patch"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes", "pods"}, Verbs: read},
			events,
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"storageclasses"}, Verbs: with("create")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csidrivers"}, Verbs: with("create", "update")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csinodes", "volumeattributesclasses"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"volumeattachments"}, Verbs: with("patch")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"volumeattachments/status"}, Verbs: []string{"patch"}},
			rbacv1.PolicyRule{APIGroups: snapshots, Resources: []string{"volumesnapshots"}, Verbs: with("update")},
			rbacv1.PolicyRule{APIGroups: snapshots, Resources: []string{"volumesnapshotcontents"}, Verbs: []string{"get", "list"}}),
		role(metav1.NamespaceSystem, client.Storage, []rbacv1.Subject{controllers}, capacity),

		clusterRole(client.StorageNodes, onAgents,
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumes"}, Verbs: with("create", "update", "patch", "delete")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims"}, Verbs: with("update", "patch")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims/status"}, Verbs: []string{"update", "patch"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes"}, Verbs: read},
			events,
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"storageclasses", "csidrivers"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: snapshots, Resources: []string{"volumesnapshots", "volumesnapshotcontents"}, Verbs: []string{"get", "list"}}),
		role(metav1.NamespaceSystem, client.StorageNodes, []rbacv1.Subject{onAgents}, capacity),
		clusterRole("kubelith:agent-storage", subject(rbacv1.GroupKind, user.NodesGroup),
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"groups"}, ResourceNames: []string{client.StorageNodes}, Verbs: []string{"impersonate"}}))
}
