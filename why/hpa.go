package why

import (
	"context"
	"fmt"
	"slices"
	"strings"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/base/oneline"
)

func hpaCondition(
	h *autoscalingv2.HorizontalPodAutoscaler, kind autoscalingv2.HorizontalPodAutoscalerConditionType,
) autoscalingv2.HorizontalPodAutoscalerCondition {
	for _, c := range h.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return autoscalingv2.HorizontalPodAutoscalerCondition{}
}

func (f *Finding) sawHPA(h *autoscalingv2.HorizontalPodAutoscaler, kind autoscalingv2.HorizontalPodAutoscalerConditionType) *Finding {
	if c := hpaCondition(h, kind); c.Type != "" {
		f.sawAt(fmt.Sprintf("horizontalpodautoscaler/%s .status.conditions[%s]", h.Name, kind),
			fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message), c.LastTransitionTime)
	}
	return f
}

// explainHPA explains a HorizontalPodAutoscaler.
//
// Source: k8s.io/kubernetes/pkg/controller/podautoscaler/horizontal.go sets the conditions and their reasons
func explainHPA(ctx context.Context, r *Reader, h *autoscalingv2.HorizontalPodAutoscaler) (*Finding, error) {
	o, to := objectAs("horizontalpodautoscaler", h), h.Spec.ScaleTargetRef
	able, active := hpaCondition(h, autoscalingv2.AbleToScale), hpaCondition(h, autoscalingv2.ScalingActive)
	limited := hpaCondition(h, autoscalingv2.ScalingLimited)
	goal := strings.ToLower(to.Kind) + "/" + to.Name
	counts := fmt.Sprintf("%d replicas, %d wanted, at most %d", h.Status.CurrentReplicas, h.Status.DesiredReplicas, h.Spec.MaxReplicas)
	switch {
	case able.Type == "":
		f := found(Progressing, InProgress, fmt.Sprintf("in progress: the controller has not handled %s yet", o)).since(h.CreationTimestamp)
		return f.sawAt(o.String()+" .metadata.creationTimestamp", "created", h.CreationTimestamp), nil
	case able.Status == corev1.ConditionFalse && able.Reason == "FailedGetScale":
		f := broken(ScaleTargetMissing, fmt.Sprintf("%s cannot read the scale of its target %s", o, goal)).since(able.LastTransitionTime)
		if r.scaleTargetGone(ctx, h) {
			f = broken(ScaleTargetMissing, fmt.Sprintf("the target of %s, %s, does not exist in namespace %s", o, goal, h.Namespace)).
				since(able.LastTransitionTime).saw(goal, "does not exist")
		}
		return f.sawHPA(h, autoscalingv2.AbleToScale).
			not(MetricsMissing, "metrics are missing", "they are not requested before the target is known").
			do("Correct spec.scaleTargetRef (kind, apiVersion, name), or create the target."), nil
	case able.Status == corev1.ConditionFalse:
		return broken(ConditionNotTrue, fmt.Sprintf("%s cannot scale %s: %s", o, goal, firstOf(able.Message, able.Reason))).
			since(able.LastTransitionTime).sawHPA(h, autoscalingv2.AbleToScale).
			do("The message is the API server's or the controller's: correct what it names."), nil
	case active.Status == corev1.ConditionFalse && active.Reason == "ScalingDisabled":
		return found(Healthy, ScaledToZero, fmt.Sprintf("%s does nothing: %s is scaled to zero", o, goal)).
			since(active.LastTransitionTime).sawHPA(h, autoscalingv2.ScalingActive).
			do("To scale it again: set its replicas to one or more."), nil
	case active.Status == corev1.ConditionFalse:
		return r.noMetrics(ctx, h, active).saw(o.String()+" .status", counts), nil
	case limited.Status == corev1.ConditionTrue && limited.Reason == "TooManyReplicas":
		f := broken(AtMaximum, fmt.Sprintf("%s wants more replicas of %s than maxReplicas (%d) allows", o, goal, h.Spec.MaxReplicas))
		return f.since(limited.LastTransitionTime).sawHPA(h, autoscalingv2.ScalingLimited).saw(o.String()+" .status", counts).
			not(MetricsMissing, "metrics are missing", "the condition ScalingActive is "+string(active.Status)).
			do("Raise spec.maxReplicas, or reduce the load of each pod."), nil
	}
	f := found(Healthy, OK, fmt.Sprintf("%s scales %s: %s", o, goal, counts)).since(active.LastTransitionTime)
	return f.sawHPA(h, autoscalingv2.ScalingActive).saw(o.String()+" .status", counts), nil
}

// scaleTargetGone reports whether the target of a built-in kind does not exist.
func (r *Reader) scaleTargetGone(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) bool {
	to := h.Spec.ScaleTargetRef
	group, err := schema.ParseGroupVersion(to.APIVersion)
	k, ok := kinds()[schema.GroupKind{Group: group.Group, Kind: to.Kind}]
	if err != nil || !ok {
		return false
	}
	_, err = k.explain(ctx, r, h.Namespace, to.Name)
	return apierrors.IsNotFound(err)
}

// noMetrics explains an autoscaler that gets no metrics: the metrics API, pods that request nothing, or the pods.
func (r *Reader) noMetrics(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler, active autoscalingv2.HorizontalPodAutoscalerCondition) *Finding {
	o := objectAs("horizontalpodautoscaler", h)
	pods, selector := r.targetPods(ctx, h)
	for _, m := range h.Spec.Metrics {
		name, container := corev1.ResourceName(""), ""
		switch {
		case m.Resource != nil && m.Resource.Target.Type == autoscalingv2.UtilizationMetricType:
			name = m.Resource.Name
		case m.ContainerResource != nil && m.ContainerResource.Target.Type == autoscalingv2.UtilizationMetricType:
			name, container = m.ContainerResource.Name, m.ContainerResource.Container
		default:
			continue
		}
		for _, pod := range pods {
			for _, c := range pod.Spec.Containers {
				// Source: calculatePodRequests in k8s.io/kubernetes/pkg/controller/podautoscaler/replica_calculator.go
				if _, ok := c.Resources.Requests[name]; ok || container != "" && c.Name != container {
					continue
				}
				f := broken(RequestsMissing, fmt.Sprintf("%s scales by the share of the requested %s, but container %s of pod/%s requests none",
					o, name, c.Name, pod.Name))
				f.saw(fmt.Sprintf("pod/%s .spec.containers[%s].resources.requests", pod.Name, c.Name), "no "+string(name))
				return f.since(active.LastTransitionTime).sawHPA(h, autoscalingv2.ScalingActive).
					not(MetricsMissing, "the metrics API is disabled", "without a request there is no share, with metrics or without").
					do(fmt.Sprintf("Set resources.requests.%s for every container in the pod template, or use a target of type AverageValue.", name))
			}
		}
	}
	anyReady := slices.ContainsFunc(pods, func(p corev1.Pod) bool { return podTrue(&p, corev1.PodReady) })
	if f, pod := r.worst(ctx, pods); f != nil && f.Status == Broken && !anyReady {
		return f.sawHPA(h, autoscalingv2.ScalingActive).saw(o.String()+" .spec.scaleTargetRef", "its pods: "+selector).under(o, podObject(pod))
	}
	if len(pods) > 0 && r.age(h.CreationTimestamp) < retried/2 {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s waits for the first metrics of its pods", o)).
			sawHPA(h, autoscalingv2.ScalingActive)
	}
	reason := oneline.Shorten(firstOf(active.Message, active.Reason), 300)
	f := broken(MetricsMissing, fmt.Sprintf("%s gets no metrics: %s", o, reason)).since(active.LastTransitionTime)
	f.sawHPA(h, autoscalingv2.ScalingActive)
	if active.Reason == "FailedGetResourceMetric" || active.Reason == "FailedGetContainerResourceMetric" {
		return f.do("Check the metrics API, which kubelith serves itself unless its component metrics is disabled:",
			kubectl("", "get --raw /apis/metrics.k8s.io/v1beta1/nodes"), kubectl("", "get apiservice v1beta1.metrics.k8s.io"))
	}
	return f.do("Check the adapter that serves custom or external metrics:", kubectl("", "get apiservices"))
}

// targetPods are the pods of an autoscaler's target, if that is of a built-in kind.
func (r *Reader) targetPods(ctx context.Context, h *autoscalingv2.HorizontalPodAutoscaler) ([]corev1.Pod, string) {
	var selector *metav1.LabelSelector
	switch name := h.Spec.ScaleTargetRef.Name; h.Spec.ScaleTargetRef.Kind {
	case "Deployment":
		if d, err := r.Deployment(ctx, h.Namespace, name); err == nil {
			selector = d.Spec.Selector
		}
	case "StatefulSet":
		if s, err := r.StatefulSet(ctx, h.Namespace, name); err == nil {
			selector = s.Spec.Selector
		}
	case "ReplicaSet":
		if s, err := r.ReplicaSet(ctx, h.Namespace, name); err == nil {
			selector = s.Spec.Selector
		}
	}
	if selector == nil {
		return nil, ""
	}
	text := metav1.FormatLabelSelector(selector)
	pods, err := r.Pods(ctx, h.Namespace, text)
	if err != nil {
		return nil, text
	}
	return slices.DeleteFunc(slices.Clone(pods), func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }), text
}
