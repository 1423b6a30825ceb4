package restriction

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"kubelith.io/kubelith/base/client"
)

// Impersonation lets each node impersonate the storage controllers on itself. An RBAC rule cannot: it names users, and
// each node has a different one.
func Impersonation() authorizer.Authorizer {
	return authorizer.AuthorizerFunc(func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() != "impersonate" || a.GetAPIGroup() != corev1.GroupName || a.GetResource() != "users" || a.GetSubresource() != "" || a.GetUser() == nil {
			return authorizer.DecisionNoOpinion, "", nil
		}
		if node, ok := nodeOf(a.GetUser()); ok && a.GetName() == client.StorageNodePrefix+node {
			return authorizer.DecisionAllow, "the storage controllers on the node", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	})
}
