package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/names"
)

// allowAdmins lets the admin kubeconfig do everything. It uses an ordinary binding, not the group system:masters, so
// that an operator can revoke a lost file: if the binding has no subjects and the annotation
// rbac.authorization.kubernetes.io/autoupdate: "false", the next start leaves it so.
func allowAdmins() []runtime.Object {
	return bindCluster(names.Admins, "cluster-admin", subject(rbacv1.GroupKind, names.Admins))
}
