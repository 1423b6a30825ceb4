package apiserver

import (
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/components/client"
)

// ownObjects are those that a release of Kubelith has in the cluster: for a new one, return it from one of these
// functions. Its kind has to be among kindsOf.
func ownObjects() []runtime.Object {
	return slices.Concat(
		exemptLoopback(),
		allowAdmins(),
		allowKubeletClient(),
		allowDNS(),
		allowManifests(),
		allowMetrics(),
		allowPlugins(),
		allowServiceLB(),
		joining(),
		storing(),
	)
}

// wantedObjects are all that have to exist. Without rbac among the authorizers there is no policy of upstream's.
func wantedObjects(rbac bool) []wanted {
	var all []wanted
	for _, object := range ownObjects() {
		all = append(all, wanted{object: object, exact: true})
	}
	others := append(priorityClasses(), metricsReader())
	if rbac {
		others = append(others, upstreamPolicy()...)
	}
	for _, object := range others {
		all = append(all, wanted{object: object})
	}
	return all
}

// exemptLoopback keeps the apiserver's own requests out of the queues of flow
// control. Upstream's loopback identity is exempt as a member of
// system:masters; ours is by name.
func exemptLoopback() []runtime.Object {
	return []runtime.Object{&flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelith-loopback"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: flowcontrolv1.PriorityLevelConfigurationNameExempt},
			MatchingPrecedence:         2,
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: client.APIServer}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"},
				}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}}
}

// allowKubeletClient lets the certificate with which the apiserver calls
// kubelets (pki.Bundle.KubeletClient) do what logs, exec and metrics need.
func allowKubeletClient() []runtime.Object {
	return bindCluster("kubelith:apiserver-kubelet-client", "system:kubelet-api-admin", subject(rbacv1.UserKind, "kube-apiserver-kubelet-client"))
}

// allowDNS gives the DNS component what CoreDNS reads, and the objects through
// which pods find it.
func allowDNS() []runtime.Object {
	read := []string{"get", "list", "watch"}
	write := []string{"get", "create", "update", "patch", "delete"}
	dns := subject(rbacv1.UserKind, client.DNS)
	return slices.Concat(
		clusterRole(client.DNS, dns,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "nodes", "pods"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read}),
		role(metav1.NamespaceSystem, client.DNS, []rbacv1.Subject{dns},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: write},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices", "endpointslices/restricted"}, Verbs: write}))
}
