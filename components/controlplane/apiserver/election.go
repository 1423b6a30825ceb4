package apiserver

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// The servers of a cluster elect a leader with the Lease kube-system/kubelith (components/controlplane/election), and
// the server that carries the virtual address with another one (components/controlplane/vip). Their writes for it
// bypass RBAC and admission: controllers wait for the election, and every pod waits for them. A role that cannot be
// written yet, or a webhook that fails closed while its pods are down, would keep the cluster down for ever.

// isLease reports whether a Lease in kube-system is one of an election.
func isLease(name string) bool { return name == names.Lease || name == names.VIPLease }

// preferElection gives elections the same level as upstream's.
func preferElection() []runtime.Object {
	return []runtime.Object{&flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelith-election"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "leader-election"},
			MatchingPrecedence:         100, // as upstream's system-leader-election
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: client.Election}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs:      []string{"get", "create", "update"},
					APIGroups:  []string{"coordination.k8s.io"},
					Resources:  []string{"leases"},
					Namespaces: []string{metav1.NamespaceSystem},
				}},
			}},
		},
	}}
}

// isElection reports whether a request comes from this process's election.
func isElection(ctx context.Context, user string) bool {
	return user == client.Election && client.IsInProcess(ctx)
}

// authorizeElection gives this process's elections access to their Leases. On a create, authorization does not see a
// name.
func authorizeElection(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser() != nil && isElection(ctx, a.GetUser().GetName()) && a.GetAPIGroup() == "coordination.k8s.io" && a.GetResource() == "leases" &&
		a.GetSubresource() == "" && a.GetNamespace() == metav1.NamespaceSystem && (a.GetVerb() == "create" || isLease(a.GetName())) {
		return authorizer.DecisionAllow, "the election of the server that leads", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// admitElection is an admission.Decorator: it skips every handler for this process's election.
func admitElection(handler admission.Interface, _ string) admission.Interface {
	return unlessElection{handler}
}

// passes reports whether a request is about the Lease, and comes from this process's election.
func passes(ctx context.Context, a admission.Attributes) bool {
	return isElection(ctx, a.GetUserInfo().GetName()) && a.GetResource().Resource == "leases" && a.GetNamespace() == metav1.NamespaceSystem && isLease(a.GetName())
}

type unlessElection struct{ admission.Interface }

// Admit implements admission.MutationInterface.
func (u unlessElection) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	handler, ok := u.Interface.(admission.MutationInterface)
	if !ok || passes(ctx, a) {
		return nil
	}
	return handler.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (u unlessElection) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	handler, ok := u.Interface.(admission.ValidationInterface)
	if !ok || passes(ctx, a) {
		return nil
	}
	return handler.Validate(ctx, a, o)
}
