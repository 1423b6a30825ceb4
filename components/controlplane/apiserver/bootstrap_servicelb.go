package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
)

// allowServiceLB lets the load balancer write the status of Services and create Events. It reads through the shared
// informers; it lists Services itself only to remove its addresses.
func allowServiceLB() []runtime.Object {
	return clusterRole(client.ServiceLB, subject(rbacv1.UserKind, client.ServiceLB),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
}
