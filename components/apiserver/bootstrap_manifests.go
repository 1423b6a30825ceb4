package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/components/client"
)

// allowManifests lets the manifests component apply and delete whatever is in the files. It has its rights by name, so that
// audit tells its requests from those of the administrator.
func allowManifests() []runtime.Object {
	return bindCluster(client.Manifests, "cluster-admin", subject(rbacv1.UserKind, client.Manifests))
}
