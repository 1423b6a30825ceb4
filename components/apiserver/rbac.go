package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

func subject(kind, name string) rbacv1.Subject {
	return rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: kind, Name: name}
}

// bindCluster binds a ClusterRole everywhere.
func bindCluster(name, role string, to rbacv1.Subject) create {
	return func(ctx context.Context, cs kubernetes.Interface) error {
		_, err := cs.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{to},
		}, metav1.CreateOptions{})
		return err
	}
}

// clusterRole makes a ClusterRole and binds it under its name.
func clusterRole(name string, to rbacv1.Subject, rules ...rbacv1.PolicyRule) create {
	return func(ctx context.Context, cs kubernetes.Interface) error {
		err := unbound(&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: rules})(ctx, cs)
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		return bindCluster(name, name, to)(ctx, cs)
	}
}

// unbound makes a ClusterRole that others bind, or aggregate.
func unbound(r *rbacv1.ClusterRole) create {
	return func(ctx context.Context, cs kubernetes.Interface) error {
		_, err := cs.RbacV1().ClusterRoles().Create(ctx, r, metav1.CreateOptions{})
		return err
	}
}

// role makes a Role in a namespace and binds it under its name.
func role(namespace, name string, to []rbacv1.Subject, rules ...rbacv1.PolicyRule) create {
	return func(ctx context.Context, cs kubernetes.Interface) error {
		_, err := cs.RbacV1().Roles(namespace).Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}, Rules: rules}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		_, err = cs.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects:   to,
		}, metav1.CreateOptions{})
		return err
	}
}
