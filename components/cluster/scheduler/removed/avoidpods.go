package removed

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	schedulinghelpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
)

// avoidPods scores by the annotation scheduler.alpha.kubernetes.io/preferAvoidPods of nodes: it names the
// ReplicationControllers and ReplicaSets whose pods should be elsewhere.
type avoidPods struct{}

var _ fwk.ScorePlugin = avoidPods{}

// Name implements fwk.Plugin.
func (avoidPods) Name() string { return NodePreferAvoidPods }

// Score implements fwk.ScorePlugin. An annotation that cannot be read avoids nothing.
func (avoidPods) Score(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "ReplicationController" && owner.Kind != "ReplicaSet" {
		return fwk.MaxScore, nil
	}
	avoids, err := schedulinghelpers.GetAvoidPodsFromNodeAnnotations(info.Node().Annotations)
	if err == nil && slices.ContainsFunc(avoids.PreferAvoidPods, func(e corev1.PreferAvoidPodsEntry) bool {
		c := e.PodSignature.PodController
		return c != nil && c.Kind == owner.Kind && c.UID == owner.UID
	}) {
		return 0, nil
	}
	return fwk.MaxScore, nil
}

// ScoreExtensions implements fwk.ScorePlugin.
func (avoidPods) ScoreExtensions() fwk.ScoreExtensions { return nil }
