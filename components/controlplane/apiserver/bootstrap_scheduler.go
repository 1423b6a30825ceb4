package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/client"
)

// allowSchedulerPolicy lets the scheduler read the ConfigMap of its policy, and no other.
func allowSchedulerPolicy(m types.NamespacedName) []runtime.Object {
	if m.Name == "" {
		return nil
	}
	return role(m.Namespace, "kubelith:scheduler-policy", []rbacv1.Subject{subject(rbacv1.UserKind, client.Scheduler)},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{m.Name}, Verbs: []string{"get"}})
}
