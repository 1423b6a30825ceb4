package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/client"
)

// allowServiceLB lets the load balancer write the status of Services and say why. It reads by the shared informers;
// only to take its addresses back does it list Services itself.
func allowServiceLB(ctx context.Context, cs kubernetes.Interface) error {
	_, err := cs.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: client.ServiceLB},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: []string{"list"}},
			{APIGroups: []string{""}, Resources: []string{"services/status"}, Verbs: []string{"patch"}},
			{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return bindUser(ctx, cs, client.ServiceLB, client.ServiceLB, client.ServiceLB)
}
