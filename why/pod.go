package why

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// objectOf names a pod in an answer.
func podObject(pod *corev1.Pod) Object {
	return Object{Type: "pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

// explainPod explains a pod.
func explainPod(ctx context.Context, r *Reader, pod *corev1.Pod) (*Finding, error) {
	o := podObject(pod)
	if pod.DeletionTimestamp != nil {
		return deletion(r, o, pod), nil
	}
	if c := podCondition(pod, corev1.PodReady); c != nil && c.Status == corev1.ConditionTrue {
		return found(Healthy, OK, fmt.Sprintf("%s is Ready since %s", o, clock(c.LastTransitionTime))).since(c.LastTransitionTime).
			sawAt(o.String()+" .status.conditions[Ready]", "True", c.LastTransitionTime), nil
	}
	return nil, nil
}

// podCondition returns a condition of a pod, or nil.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		if pod.Status.Conditions[i].Type == kind {
			return &pod.Status.Conditions[i]
		}
	}
	return nil
}
