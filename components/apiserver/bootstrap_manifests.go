package apiserver

import (
	"context"

	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/client"
)

// allowManifests lets the manifests component apply and delete whatever is in the files. It has its rights by name, so that
// audit tells its requests from those of the administrator.
func allowManifests(ctx context.Context, cs kubernetes.Interface) error {
	return bindUser(ctx, cs, client.Manifests, "cluster-admin", client.Manifests)
}
