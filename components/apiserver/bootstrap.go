package apiserver

import (
	"context"
	"fmt"
	"slices"
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
	policy, err := missingPolicy(ctx, cs)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(bootstrapWrites)
	own := []create{exemptLoopback, allowKubeletClient(), allowManifests(), allowServiceLB(), allowPlugins()}
	for _, f := range slices.Concat(own, allowDNS(), allowMetrics(), joining(), storing(), policy, priorityClasses()) {
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
func allowKubeletClient() create {
	return bindCluster("kubelith:apiserver-kubelet-client", "system:kubelet-api-admin", subject(rbacv1.UserKind, "kube-apiserver-kubelet-client"))
}

// allowDNS gives the DNS component what CoreDNS reads, and the objects through
// which pods find it.
func allowDNS() []create {
	read := []string{"get", "list", "watch"}
	write := []string{"get", "create", "update", "patch", "delete"}
	dns := subject(rbacv1.UserKind, client.DNS)
	return []create{
		clusterRole(client.DNS, dns,
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services", "namespaces", "nodes", "pods"}, Verbs: read},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices"}, Verbs: read}),
		role(metav1.NamespaceSystem, client.DNS, []rbacv1.Subject{dns},
			rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"services"}, Verbs: write},
			rbacv1.PolicyRule{APIGroups: []string{"discovery.k8s.io"}, Resources: []string{"endpointslices", "endpointslices/restricted"}, Verbs: write}),
	}
}
