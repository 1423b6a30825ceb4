package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/client"
)

// allowMetrics lets the component make its APIService, and whoever may view a namespace see its metrics, as
// metrics-server's own manifests do.
func allowMetrics(ctx context.Context, cs kubernetes.Interface) error {
	for _, role := range []*rbacv1.ClusterRole{{
		ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-view": "true",
			"rbac.authorization.k8s.io/aggregate-to-edit": "true", "rbac.authorization.k8s.io/aggregate-to-admin": "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
	}, {
		ObjectMeta: metav1.ObjectMeta{Name: client.Metrics},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, Verbs: []string{"create"}}, // creation has no name yet
			{APIGroups: []string{"apiregistration.k8s.io"}, Resources: []string{"apiservices"}, ResourceNames: []string{"v1beta1.metrics.k8s.io"}, Verbs: []string{"get", "delete"}},
		},
	}} {
		if _, err := cs.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return bindUser(ctx, cs, client.Metrics, client.Metrics, client.Metrics)
}
