package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
)

// allowManifests lets the manifests component apply and delete whatever is in the files. It has a binding of its name,
// so that the audit log distinguishes its requests from the administrator's.
func allowManifests() []runtime.Object {
	return bindCluster(client.Manifests, "cluster-admin", subject(rbacv1.UserKind, client.Manifests))
}
