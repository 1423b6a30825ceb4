package why

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// kinds is what knows more about a kind than its conditions and Events. A line: how the kind is read, what explains it.
func kinds() map[schema.GroupKind]kind {
	return map[schema.GroupKind]kind{
		{Group: "apps", Kind: "DaemonSet"}:                      of((*Reader).DaemonSet, explainDaemonSet),
		{Group: "apps", Kind: "Deployment"}:                     of((*Reader).Deployment, explainDeployment),
		{Group: "apps", Kind: "ReplicaSet"}:                     of((*Reader).ReplicaSet, explainReplicaSet),
		{Group: "apps", Kind: "StatefulSet"}:                    of((*Reader).StatefulSet, explainStatefulSet),
		{Kind: "Service"}:                                       of((*Reader).Service, explainService),
		{Group: "batch", Kind: "CronJob"}:                       of((*Reader).CronJob, explainCronJob),
		{Group: "batch", Kind: "Job"}:                           of((*Reader).Job, explainJob),
		{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: of((*Reader).HPA, explainHPA),
		{Kind: "Namespace"}:                                     of(clusterScoped((*Reader).Namespace), explainNamespace).andDeletion(),
		{Kind: "Node"}:                                          of(clusterScoped((*Reader).Node), explainNode),
		{Kind: "PersistentVolumeClaim"}:                         of((*Reader).Claim, explainClaim).andDeletion(),
		{Kind: "Pod"}:                                           of((*Reader).Pod, explainPod).andDeletion(),
	}
}

// kind explains the objects of one kind. A nil finding leaves it to conditions and Events.
type kind struct {
	explain func(ctx context.Context, r *Reader, namespace, name string) (*Finding, error)
	// deletion: explain also knows why an object of this kind is not gone yet.
	deletion bool
}

// of returns the kind that get reads and explain explains.
func of[T metav1.Object](get func(r *Reader, ctx context.Context, namespace, name string) (T, error),
	explain func(ctx context.Context, r *Reader, object T) (*Finding, error)) kind {
	return kind{explain: func(ctx context.Context, r *Reader, namespace, name string) (*Finding, error) {
		object, err := get(r, ctx, namespace, name)
		if err != nil {
			return nil, err
		}
		return explain(ctx, r, object)
	}}
}

// clusterScoped reads an object that has no namespace.
func clusterScoped[T any](
	get func(r *Reader, ctx context.Context, name string) (T, error),
) func(r *Reader, ctx context.Context, namespace, name string) (T, error) {
	return func(r *Reader, ctx context.Context, _, name string) (T, error) { return get(r, ctx, name) }
}

func (k kind) andDeletion() kind {
	k.deletion = true
	return k
}
