package apiserver

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/components/client"
)

const (
	// bootstrapTimeout bounds the creation of the objects at start.
	bootstrapTimeout = time.Minute
	// bootstrapWrites is how many objects are written at a time: etcd syncs
	// concurrent writes to disk together.
	bootstrapWrites = 32
)

// create makes one object; that it exists already is success.
type create func(context.Context, kubernetes.Interface) error

// bootstrap is a post-start hook: it makes what has to exist before other
// components can work. That is the few objects that the composition needs and,
// ahead of upstream's own hooks, upstream's RBAC policy and priority classes:
// those hooks wait for a second, on every start, before they look, and write 80
// objects one after the other. They run all the same, and reconcile what exists.
func bootstrap(hook genericapiserver.PostStartHookContext) error {
	cs, err := kubernetes.NewForConfig(hook.LoopbackClientConfig)
	if err != nil {
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(hook, 20*time.Millisecond, bootstrapTimeout, true, func(ctx context.Context) (bool, error) {
		last = createAll(ctx, cs)
		return last == nil, nil
	})
	if err != nil && hook.Err() == nil {
		return fmt.Errorf("bootstrap objects: %w", last)
	}
	return nil
}

func createAll(ctx context.Context, cs kubernetes.Interface) error {
	todo := append([]create{exemptLoopback, allowKubeletClient, allowDNS, allowManifests, allowServiceLB, allowMetrics, allowPlugins}, append(joining(), storing()...)...)
	policy, err := missingPolicy(ctx, cs)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bootstrapWrites)
	todo = append(append(todo, policy...), priorityClasses()...)
	for _, f := range todo {
		group.Go(func() error {
			if err := f(ctx, cs); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return nil
		})
	}
	return group.Wait()
}

// exemptLoopback keeps the apiserver's own requests out of the queues of flow
// control. Upstream's loopback identity is exempt as a member of
// system:masters; ours is by name.
func exemptLoopback(ctx context.Context, cs kubernetes.Interface) error {
	_, err := cs.FlowcontrolV1().FlowSchemas().Create(ctx, &flowcontrolv1.FlowSchema{
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
	}, metav1.CreateOptions{})
	return err
}

// allowKubeletClient lets the certificate with which the apiserver calls
// kubelets (pki.Bundle.KubeletClient) do what logs, exec and metrics need.
func allowKubeletClient(ctx context.Context, cs kubernetes.Interface) error {
	return bindUser(ctx, cs, "kubelith:apiserver-kubelet-client", "system:kubelet-api-admin", "kube-apiserver-kubelet-client")
}

// allowDNS gives the DNS component what CoreDNS reads, and the objects through
// which pods find it.
func allowDNS(ctx context.Context, cs kubernetes.Interface) error {
	read := []string{"get", "list", "watch"}
	write := []string{"get", "create", "update", "patch", "delete"}
	_, err := cs.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: client.DNS},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "nodes", "pods"}, Verbs: read},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = cs.RbacV1().Roles(metav1.NamespaceSystem).Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: client.DNS, Namespace: metav1.NamespaceSystem},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: write},
			{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices", "endpointslices/restricted"}, Verbs: write},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = cs.RbacV1().RoleBindings(metav1.NamespaceSystem).Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: client.DNS, Namespace: metav1.NamespaceSystem},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: client.DNS},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: client.DNS}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return bindUser(ctx, cs, client.DNS, client.DNS, client.DNS)
}

// bindUser binds a ClusterRole to a user.
func bindUser(ctx context.Context, cs kubernetes.Interface, name, role, user string) error {
	_, err := cs.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	return err
}
