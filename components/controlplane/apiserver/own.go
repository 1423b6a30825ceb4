package apiserver

import (
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/components/controlplane/apiserver/initializers"
)

// ownObjects are the objects that Kubelith needs in the cluster: to add one, return it from one of these functions. Its
// kind must be in kindsOf. An object that a later release no longer returns is removed from the cluster, and one that
// it returns in another form is changed, wider or narrower.
func ownObjects(o *Options) []runtime.Object {
	return slices.Concat(
		exemptLoopback(),
		preferComponents(),
		preferElection(),
		allowAdmins(),
		allowLoopback(),
		allowKubeletClient(),
		allowDNS(),
		allowEncryption(),
		allowCARotation(),
		allowManifests(),
		allowMetrics(),
		allowPlugins(),
		allowSchedulerPolicy(o.SchedulerPolicy),
		allowServiceLB(),
		allowTraces(),
		joining(),
		storing(),
		[]runtime.Object{initializers.Definition(), initializers.APIService()},
	)
}

// wantedObjects returns all objects that must exist. Without rbac among the authorizers upstream's policy is left out.
func wantedObjects(o *Options, rbac bool) []wanted {
	var all []wanted
	for _, object := range ownObjects(o) {
		mark(object.(metav1.Object))
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

// exemptLoopback keeps the apiserver's own requests out of the queues of flow control. Upstream's loopback identity is
// exempt as a member of system:masters; ours is exempt by name.
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

// preferComponents gives the components of this process, by name, the level of kube-controller-manager and the
// scheduler. Without it they share global-default with the cluster's users, and a flood of requests from many users
// delays DNS, load balancers and nodes that join. It is not the level system: that is for nodes, whose heartbeats must
// not wait for a large manifest. The operator ranks plugins' own identities.
func preferComponents() []runtime.Object {
	var subjects []flowcontrolv1.Subject
	for _, name := range []string{
		client.DNS, client.Token, client.Approver, client.Manifests, client.ServiceLB, client.Metrics,
		client.Storage, client.Plugins, client.Encryption, client.CARotation, client.Servers,
	} {
		subjects = append(subjects, flowcontrolv1.Subject{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: name}})
	}
	return []runtime.Object{&flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelith-components"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "workload-high"},
			MatchingPrecedence:         800, // as kube-controller-manager
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: subjects,
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}, ClusterScope: true, Namespaces: []string{"*"},
				}},
				NonResourceRules: []flowcontrolv1.NonResourcePolicyRule{{Verbs: []string{"*"}, NonResourceURLs: []string{"*"}}},
			}},
		},
	}}
}

// allowLoopback is for aggregated API servers that check the rights of the apiserver's own identity, which calls them
// for webhooks at the Service default/kubernetes. Upstream's identity has the right as a member of system:masters.
func allowLoopback() []runtime.Object {
	return bindCluster("kubelith:apiserver", "cluster-admin", subject(rbacv1.UserKind, client.APIServer))
}

// allowKubeletClient lets the certificate with which the apiserver calls kubelets (pki.Bundle.KubeletClient) do what
// logs, exec and metrics need.
func allowKubeletClient() []runtime.Object {
	return bindCluster("kubelith:apiserver-kubelet-client", "system:kubelet-api-admin", subject(rbacv1.UserKind, names.KubeletClient))
}

// allowDNS lets the DNS component read what CoreDNS reads, and write the objects through which pods find it.
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
