package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// allowMetrics lets the component create its APIService.
func allowMetrics() []runtime.Object {
	group, services, own := []string{"apiregistration.k8s.io"}, []string{"apiservices"}, []string{names.MetricsAPIService}
	return clusterRole(client.Metrics, subject(rbacv1.UserKind, client.Metrics),
		// A create request has no name yet.
		rbacv1.PolicyRule{APIGroups: group, Resources: services, Verbs: []string{"create"}},
		rbacv1.PolicyRule{APIGroups: group, Resources: services, ResourceNames: own, Verbs: []string{"get", "list", "watch", "delete"}})
}

// metricsReader lets any user who may view a namespace see its metrics, as metrics-server's own manifests do. It uses
// the same name, so that additions by a user's metrics-server stay.
func metricsReader() runtime.Object {
	return &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "system:aggregated-metrics-reader", Labels: map[string]string{
			"rbac.authorization.k8s.io/aggregate-to-view": "true",
			"rbac.authorization.k8s.io/aggregate-to-edit": "true", "rbac.authorization.k8s.io/aggregate-to-admin": "true",
		}},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{"metrics.k8s.io"}, Resources: []string{"pods", "nodes"}, Verbs: []string{"get", "list", "watch"}}},
	}
}
