package why

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
)

func TestHPAs(t *testing.T) {
	type conditions = []autoscalingv2.HorizontalPodAutoscalerCondition
	c := func(kind autoscalingv2.HorizontalPodAutoscalerConditionType, status corev1.ConditionStatus, reason, message string) autoscalingv2.HorizontalPodAutoscalerCondition {
		return autoscalingv2.HorizontalPodAutoscalerCondition{Type: kind, Status: status, Reason: reason, Message: message, LastTransitionTime: before(time.Minute)}
	}
	able, active := c("AbleToScale", "True", "SucceededGetScale", ""), c("ScalingActive", "True", "ValidMetricFound", "")
	blind := c("ScalingActive", "False", "FailedGetResourceMetric", "the HPA was unable to compute the replica count: failed to get cpu utilization")
	utilization := int32(50)
	deployment := aDeployment(1, appsv1.DeploymentStatus{}, nil)
	ready := state(runsFor(40*time.Second), corev1.ContainerState{}, 0, true)
	requests := func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("10m")}
	}
	pod := func(changes ...func(*corev1.Pod)) *corev1.Pod {
		return podOf("ReplicaSet", "web-b", "web-1", all(changes...))
	}
	for name, x := range map[string]struct {
		conditions conditions
		age        time.Duration
		others     []runtime.Object
		status     Status
		code       Code
		proof      string
	}{
		"works":             {conditions{able, active}, time.Hour, []runtime.Object{deployment}, Healthy, OK, "ValidMetricFound"},
		"at its minimum":    {conditions{able, active, c("ScalingLimited", "True", "TooFewReplicas", "")}, time.Hour, []runtime.Object{deployment}, Healthy, OK, "ValidMetricFound"},
		"at its maximum":    {conditions{able, active, c("ScalingLimited", "True", "TooManyReplicas", "more than the maximum")}, time.Hour, []runtime.Object{deployment}, Broken, AtMaximum, "more than the maximum"},
		"no target":         {conditions{c("AbleToScale", "False", "FailedGetScale", `deployments.apps "web" not found`)}, time.Hour, nil, Broken, ScaleTargetMissing, "deployment/web: does not exist"},
		"target unreadable": {conditions{c("AbleToScale", "False", "FailedGetScale", `forbidden`)}, time.Hour, []runtime.Object{deployment}, Broken, ScaleTargetMissing, "forbidden"},
		"no requests":       {conditions{able, blind}, time.Hour, []runtime.Object{deployment, pod(ready)}, Broken, RequestsMissing, "no cpu"},
		"no metrics":        {conditions{able, blind}, time.Hour, []runtime.Object{deployment, pod(ready, requests)}, Broken, MetricsMissing, "FailedGetResourceMetric"},
		"no metrics yet":    {conditions{able, blind}, time.Second, []runtime.Object{deployment, pod(ready, requests)}, Progressing, InProgress, "FailedGetResourceMetric"},
		"scaled to zero":    {conditions{able, c("ScalingActive", "False", "ScalingDisabled", "")}, time.Hour, []runtime.Object{deployment}, Healthy, ScaledToZero, "ScalingDisabled"},
		"not handled":       {nil, time.Second, nil, Progressing, InProgress, "created"},
	} {
		t.Run(name, func(t *testing.T) {
			h := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("web"), Status: autoscalingv2.HorizontalPodAutoscalerStatus{Conditions: x.conditions}}
			h.CreationTimestamp = before(x.age)
			h.Spec.ScaleTargetRef = autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "web"}
			h.Spec.Metrics = []autoscalingv2.MetricSpec{{Type: "Resource", Resource: &autoscalingv2.ResourceMetricSource{Name: "cpu", Target: autoscalingv2.MetricTarget{Type: "Utilization", AverageUtilization: &utilization}}}}
			r, _ := reader(t, append([]runtime.Object{h, readyNode("node-1")}, x.others...)...)
			a := ask(t, r, target(autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), "horizontalpodautoscalers", "ns", "web"))
			if a.Status != x.status || a.Code != x.code || !a.proves(x.proof) {
				t.Errorf("want %s %s with %q, got %+v", x.status, x.code, x.proof, a)
			}
		})
	}
}
