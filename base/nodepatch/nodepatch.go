// Package nodepatch writes parts of a Node and leaves the rest to its other writers: the kubelet, controllers, users.
package nodepatch

import (
	"context"
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Merge applies a JSON merge patch (RFC 7396), and returns the Node after it.
func Merge(ctx context.Context, cs kubernetes.Interface, node string, change map[string]any, subresources ...string) (*corev1.Node, error) {
	return patch(ctx, cs, node, types.MergePatchType, change, subresources...)
}

// Annotate sets an annotation, or removes it if value is nil.
func Annotate(ctx context.Context, cs kubernetes.Interface, node, annotation string, value any) error {
	_, err := Merge(ctx, cs, node, map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotation: value}}})
	return err
}

// Status applies a strategic merge patch to the status and metadata: of a list like the conditions, it changes only the
// elements that it names.
func Status(ctx context.Context, cs kubernetes.Interface, node string, change map[string]any) error {
	_, err := patch(ctx, cs, node, types.StrategicMergePatchType, change, "status")
	return err
}

func patch(ctx context.Context, cs kubernetes.Interface, node string, t types.PatchType, change map[string]any, subresources ...string) (*corev1.Node, error) {
	body, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	return cs.CoreV1().Nodes().Patch(ctx, node, t, body, metav1.PatchOptions{}, subresources...)
}

// Conditions returns the elements of a strategic merge patch that gives a Node the wanted conditions, with the times of
// their last transitions, and removes others for whose type ours returns true. There are none if nothing but times
// differs.
func Conditions(have, wanted []corev1.NodeCondition, now metav1.Time, ours func(corev1.NodeConditionType) bool) (elements []any) {
	for _, c := range wanted {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		if i := slices.IndexFunc(have, is(c.Type)); i >= 0 && have[i].Status == c.Status {
			if have[i].Reason == c.Reason && have[i].Message == c.Message {
				continue
			}
			c.LastTransitionTime = have[i].LastTransitionTime
		}
		elements = append(elements, c)
	}
	for _, h := range have {
		if ours(h.Type) && !slices.ContainsFunc(wanted, is(h.Type)) {
			elements = append(elements, map[string]any{"$patch": "delete", "type": h.Type})
		}
	}
	return elements
}

func is(t corev1.NodeConditionType) func(corev1.NodeCondition) bool {
	return func(c corev1.NodeCondition) bool { return c.Type == t }
}
