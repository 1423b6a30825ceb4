package apiserver

import (
	"context"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/names"
)

// TestElectionPasses: a policy that denies every Lease does not keep a server from leading, and still stops all others.
func TestElectionPasses(t *testing.T) {
	c := serve(t)
	admin := clientFor(t, c.Config("somebody", "system:masters"))
	own := clientFor(t, c.Config(client.Election)).CoordinationV1()
	lease := func(namespace, name string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	const name = "deny-leases"
	deny(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create, &admissionregistrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionregistrationv1.RuleWithOperations{
					Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
					Rule:       admissionregistrationv1.Rule{APIGroups: []string{"coordination.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"leases"}},
				},
			}}},
			Validations: []admissionregistrationv1.Validation{{Expression: "false"}},
		},
	})
	defer admin.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(context.Background(), name, metav1.DeleteOptions{})
	deny(t, admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Create, &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: name,
			ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny}},
	})
	defer admin.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(context.Background(), name, metav1.DeleteOptions{})
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		_, err := admin.CoordinationV1().Leases(metav1.NamespaceDefault).Create(t.Context(), lease(metav1.NamespaceDefault, "probe"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the policy does not apply: %v", err)
		}
	}

	made, err := own.Leases(metav1.NamespaceSystem).Create(t.Context(), lease(metav1.NamespaceSystem, names.Lease), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create the Lease: %v", err)
	}
	holder := "a"
	made.Spec.HolderIdentity = &holder
	if _, err := own.Leases(metav1.NamespaceSystem).Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Errorf("renew the Lease: %v", err)
	}
	if _, err := own.Leases(metav1.NamespaceSystem).Create(t.Context(), lease(metav1.NamespaceSystem, names.VIPLease), metav1.CreateOptions{}); err != nil {
		t.Errorf("create the Lease of the virtual address: %v", err)
	}
	if _, err := own.Leases(metav1.NamespaceSystem).Create(t.Context(), lease(metav1.NamespaceSystem, "other"), metav1.CreateOptions{}); err == nil {
		t.Error("the election passed with another Lease")
	}
	if _, err := own.Leases(metav1.NamespaceDefault).Create(t.Context(), lease(metav1.NamespaceDefault, names.Lease), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Lease of another namespace: %v", err)
	}
	outside := clientFor(t, &rest.Config{Host: shared.url,
		TLSClientConfig: rest.TLSClientConfig{CAFile: shared.pki.ClusterCA.Cert, CertFile: shared.pki.Admin.Cert, KeyFile: shared.pki.Admin.Key},
		Impersonate:     rest.ImpersonationConfig{UserName: client.Election}})
	if _, err := outside.CoordinationV1().Leases(metav1.NamespaceSystem).Update(t.Context(), made, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("from outside, by the same name: %v", err)
	}
}

// deny creates an object of a policy.
func deny[T any](t *testing.T, create func(context.Context, T, metav1.CreateOptions) (T, error), object T) {
	t.Helper()
	if _, err := create(t.Context(), object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
