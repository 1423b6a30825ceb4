package apiserver

import (
	"context"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"kubelith.io/kubelith/components/client"
)

// The servers of a cluster elect the one that leads by the Lease kube-system/kubelith (components/election). What they write for that
// passes neither RBAC nor admission: controllers wait for it, and with them every pod, so that a role that cannot be written yet, or a
// webhook that fails closed and whose pods do not run, would keep the cluster down for ever.

const electionLease = "kubelith"

// preferElection gives elections the level that upstream's have.
func preferElection() []runtime.Object {
	return []runtime.Object{&flowcontrolv1.FlowSchema{
		ObjectMeta: metav1.ObjectMeta{Name: "kubelith-election"},
		Spec: flowcontrolv1.FlowSchemaSpec{
			PriorityLevelConfiguration: flowcontrolv1.PriorityLevelConfigurationReference{Name: "leader-election"},
			MatchingPrecedence:         100, // that of upstream's system-leader-election
			DistinguisherMethod:        &flowcontrolv1.FlowDistinguisherMethod{Type: flowcontrolv1.FlowDistinguisherMethodByUserType},
			Rules: []flowcontrolv1.PolicyRulesWithSubjects{{
				Subjects: []flowcontrolv1.Subject{{Kind: flowcontrolv1.SubjectKindUser, User: &flowcontrolv1.UserSubject{Name: client.Election}}},
				ResourceRules: []flowcontrolv1.ResourcePolicyRule{{
					Verbs: []string{"get", "create", "update"}, APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Namespaces: []string{metav1.NamespaceSystem},
				}},
			}},
		},
	}}
}

// isElection reports whether a request is one of this process's election.
func isElection(ctx context.Context, user string) bool {
	return user == client.Election && client.IsInProcess(ctx)
}

// authorizeElection allows this process's election its Lease. On a create, authorization does not see a name.
func authorizeElection(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetUser() != nil && isElection(ctx, a.GetUser().GetName()) && a.GetAPIGroup() == "coordination.k8s.io" && a.GetResource() == "leases" &&
		a.GetSubresource() == "" && a.GetNamespace() == metav1.NamespaceSystem && (a.GetVerb() == "create" || a.GetName() == electionLease) {
		return authorizer.DecisionAllow, "the election of the server that leads", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// admitElection is an admission.Decorator: this process's election passes every handler.
func admitElection(handler admission.Interface, _ string) admission.Interface {
	return unlessElection{handler}
}

// passes reports whether a request is about the Lease, and one of this process's election.
func passes(ctx context.Context, a admission.Attributes) bool {
	return isElection(ctx, a.GetUserInfo().GetName()) && a.GetResource().Resource == "leases" && a.GetNamespace() == metav1.NamespaceSystem && a.GetName() == electionLease
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
