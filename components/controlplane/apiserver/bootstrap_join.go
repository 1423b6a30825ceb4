package apiserver

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/base/tunnel"
)

// joining returns the rights of machines that join, of the nodes that they become, and of the components that admit
// them.
//
// There is no binding to upstream's roles nodeclient and selfnodeclient: with the first, upstream's controller approves
// any node's name for any token; with the second, it renews a deleted node's certificate for ever.
// components/cluster/approver decides instead.
func joining() []runtime.Object {
	read, follow := []string{"get", "list", "watch"}, []string{"list", "watch"}
	core, requests := []string{""}, []string{"certificates.k8s.io"}
	configMap := func(name string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: core, Resources: []string{"configmaps"}, ResourceNames: []string{name}, Verbs: verbs}
	}
	machines, nodes := subject(rbacv1.GroupKind, names.JoiningAgents), subject(rbacv1.GroupKind, user.NodesGroup)
	newServers, known := subject(rbacv1.GroupKind, names.JoiningServers), subject(rbacv1.GroupKind, names.Servers)
	token, approver := subject(rbacv1.UserKind, client.Token), subject(rbacv1.UserKind, client.Approver)
	admission := subject(rbacv1.UserKind, client.Servers)
	return slices.Concat(
		// A machine requests its first certificate; upstream lets nodes request the next ones.
		bindCluster("kubelith:node-bootstrapper", "system:node-bootstrapper", machines),
		// A node has one identity, that of its kubelet: its proxy and DNS read more than the Node authorizer allows.
		bindCluster("kubelith:node-proxier", "system:node-proxier", nodes),
		clusterRole("kubelith:agent", nodes,
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"services", "namespaces"}, Verbs: follow},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: follow},
			// Network policies select pods of all nodes, by what this path returns about them.
			rbacv1.PolicyRule{NonResourceURLs: []string{names.PolicyPodsPath}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{NonResourceURLs: []string{tunnel.Path}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{NonResourceURLs: []string{names.UpgradesPath + "*"}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: []string{"policy.networking.k8s.io"}, Resources: []string{"clusternetworkpolicies"}, Verbs: follow},
			rbacv1.PolicyRule{APIGroups: []string{"apiextensions.k8s.io"}, Resources: []string{"customresourcedefinitions"},
				ResourceNames: []string{names.ClusterPolicies}, Verbs: follow}, // whether there are any
			rbacv1.PolicyRule{APIGroups: []string{"networking.k8s.io"}, Resources: []string{"servicecidrs", "networkpolicies"}, Verbs: follow}),
		role(metav1.NamespacePublic, "kubelith:cluster-info", []rbacv1.Subject{subject(rbacv1.UserKind, user.Anonymous)},
			configMap("cluster-info", "get")),
		role(metav1.NamespaceSystem, "kubelith:cluster-config", []rbacv1.Subject{machines, nodes, newServers},
			configMap(names.ClusterInfo, read...)),
		role(metav1.NamespaceSystem, "kubelith:dns-custom", []rbacv1.Subject{nodes, subject(rbacv1.UserKind, client.DNS)},
			configMap(names.DNSCustom, read...)),

		// A machine becomes a server, and one that lost its data comes back. The handler decides
		// (components/controlplane/servers).
		clusterRole("kubelith:join-servers", newServers,
			rbacv1.PolicyRule{NonResourceURLs: []string{names.ServersPath}, Verbs: []string{"post"}}),
		bindCluster("kubelith:rejoin-servers", "kubelith:join-servers", known),
		// A server gets the program of an upgrade from the one whose administrator has put it there.
		clusterRole("kubelith:upgrade-servers", known,
			rbacv1.PolicyRule{NonResourceURLs: []string{names.UpgradesPath + "*"}, Verbs: []string{"get"}}),
		clusterRole(client.Servers, admission,
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes"}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: []string{"get"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"events"}, Verbs: []string{"create"}}),
		role(metav1.NamespaceSystem, client.Servers, []rbacv1.Subject{admission},
			// It uses up tokens, records removals, and withdraws those that fail.
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "update", "delete"}}),

		role(metav1.NamespacePublic, client.Token, []rbacv1.Subject{token},
			configMap("cluster-info", "get", "create", "patch")),
		role(metav1.NamespaceSystem, client.Token, []rbacv1.Subject{token},
			configMap(names.ClusterInfo, "get", "create", "patch"),
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"secrets"}, Verbs: []string{"get", "create", "update"}}),

		clusterRole(client.Approver, approver,
			rbacv1.PolicyRule{APIGroups: requests, Resources: []string{"certificatesigningrequests"}, Verbs: append([]string{"delete"}, read...)},
			rbacv1.PolicyRule{APIGroups: requests, Resources: []string{"certificatesigningrequests/approval"}, Verbs: []string{"update"}},
			rbacv1.PolicyRule{APIGroups: requests, Resources: []string{"signers"}, Verbs: []string{"approve"},
				ResourceNames: []string{"kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes"}, Verbs: append([]string{"patch"}, read...)}, // labels Nodes
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},           // and gives them external addresses
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}),
		role(metav1.NamespaceSystem, client.Approver, []rbacv1.Subject{approver},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"configmaps"}, Verbs: []string{"get", "create", "delete"}},
			rbacv1.PolicyRule{APIGroups: core, Resources: []string{"secrets"}, Verbs: []string{"delete"}})) // old records of removed nodes
}
