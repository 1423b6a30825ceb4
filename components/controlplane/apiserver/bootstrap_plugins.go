package apiserver

import (
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
)

// allowPlugins lets the plugin host report on plugins: Events and conditions of the Node. Plugins themselves have no
// rights.
func allowPlugins() []runtime.Object {
	return clusterRole(client.Plugins, subject(rbacv1.UserKind, client.Plugins),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}})
}
