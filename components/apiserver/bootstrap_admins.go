package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/components/pki"
)

// allowAdmins lets the admin kubeconfig do everything. It is a binding like others, and not the group system:masters, so that
// who has lost the file can take its rights away: without subjects, and with rbac.authorization.kubernetes.io/autoupdate: "false", the
// next start leaves it so.
func allowAdmins() []runtime.Object {
	return bindCluster(pki.AdminsGroup, "cluster-admin", subject(rbacv1.GroupKind, pki.AdminsGroup))
}
