package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/components/client"
)

// allowServiceLB lets the load balancer write the status of Services and say why. It reads by the shared informers;
// only to take its addresses back does it list Services itself.
func allowServiceLB() []runtime.Object {
	return clusterRole(client.ServiceLB, subject(rbacv1.UserKind, client.ServiceLB),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
}
