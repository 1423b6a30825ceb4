package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"kubelith.io/kubelith/components/client"
)

// storing returns what creates the rights of the controllers of storage plugins: those of the sidecars external-provisioner,
// -attacher and -resizer (deploy/kubernetes/rbac.yaml of each), and to make the driver's objects. Secrets are not
// among them, as with the sidecars: who has StorageClasses with Secrets grants them.
//
// On an agent the controllers act under the same name, as the node may: upstream's provisioner needs the same rights
// on each node for drivers that are node-local (docs/adr/018).
func storing() []runtime.Object {
	read := []string{"get", "list", "watch"}
	core, storage, snapshots := []string{""}, []string{"storage.k8s.io"}, []string{"snapshot.storage.k8s.io"}
	with := func(more ...string) []string { return append(more, read...) }
	controllers := subject(rbacv1.UserKind, client.Storage)
	return slices.Concat(
		clusterRole(client.Storage, controllers,
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumes"}, Verbs: with("create", "update", "patch", "delete")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims"}, Verbs: with("update", "patch")},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"persistentvolumeclaims/status"}, Verbs: []string{"update", "patch"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes", "pods"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"events"}, Verbs: []string{"create", "update", "patch"}},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"storageclasses"}, Verbs: with("create")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csidrivers"}, Verbs: with("create", "update")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csinodes", "volumeattributesclasses"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"volumeattachments"}, Verbs: with("patch")},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"volumeattachments/status"}, Verbs: []string{"patch"}},
			rbacv1.PolicyRule{APIGroups: snapshots, Resources: []string{"volumesnapshots"}, Verbs: with("update")},
			rbacv1.PolicyRule{APIGroups: snapshots, Resources: []string{"volumesnapshotcontents"}, Verbs: []string{"get", "list"}}),
		role(metav1.NamespaceSystem, client.Storage, []rbacv1.Subject{controllers},
			rbacv1.PolicyRule{APIGroups: storage, Resources: []string{"csistoragecapacities"}, Verbs: with("create", "update", "patch", "delete")}),
		clusterRole("kubelith:agent-storage", subject(rbacv1.GroupKind, user.NodesGroup),
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"users"}, ResourceNames: []string{client.Storage}, Verbs: []string{"impersonate"}}))
}
