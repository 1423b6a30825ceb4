package why

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"
)

// maxPods bounds the pods of a workload that are inspected, those that are not ready first.
const maxPods = 12

// revision is how a Deployment and its ReplicaSets number their templates.
//
// Source: k8s.io/kubernetes/pkg/controller/deployment/util (RevisionAnnotation)
const revision = "deployment.kubernetes.io/revision"

// objectAs names an object of a built-in kind.
func objectAs(kind string, o metav1.Object) Object {
	return Object{Type: kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: string(o.GetUID())}
}

func number(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

// owned are the pods that an object controls and that are not being deleted; those that are not ready come first.
func (r *Reader) owned(ctx context.Context, owner metav1.Object, selector *metav1.LabelSelector) []corev1.Pod {
	pods, err := r.Pods(ctx, owner.GetNamespace(), metav1.FormatLabelSelector(selector))
	if err != nil {
		return nil
	}
	var all []corev1.Pod
	for _, pod := range pods {
		if metav1.IsControlledBy(&pod, owner) && pod.DeletionTimestamp == nil {
			all = append(all, pod)
		}
	}
	slices.SortStableFunc(all, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return unreadyFirst(all)
}

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// worst explains the pod that decides: the first broken one, else the first that is on its way; nil: none is either.
func (r *Reader) worst(ctx context.Context, pods []corev1.Pod) (*Finding, *corev1.Pod) {
	var slow *Finding
	var slowPod *corev1.Pod
	for i := range pods[:min(len(pods), maxPods)] {
		f := r.podCause(ctx, &pods[i])
		if f == nil {
			continue
		}
		if f.Status == Broken {
			return f, &pods[i]
		}
		if f.Status == Progressing && slow == nil {
			slow, slowPod = f, &pods[i]
		}
	}
	return slow, slowPod
}

// behind is the answer for an object whose controller has not seen its last change.
func behind(o Object, observed int64, object metav1.Object) *Finding {
	if observed >= object.GetGeneration() {
		return nil
	}
	return found(Progressing, ObservationBehind, fmt.Sprintf("%s was changed, but its controller has not acted on that yet", o)).
		saw(o.String()+" .status.observedGeneration", fmt.Sprintf("%d; .metadata.generation is %d", observed, object.GetGeneration())).
		do("If this persists, the controller of this type does not run: check its pods and its log.")
}

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) appsv1.DeploymentCondition {
	for _, c := range d.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return appsv1.DeploymentCondition{}
}

func explainDeployment(ctx context.Context, r *Reader, d *appsv1.Deployment) (*Finding, error) {
	o, want := objectAs("deployment", d), number(d.Spec.Replicas)
	if f := behind(o, d.Status.ObservedGeneration, d); f != nil {
		return f, nil
	}
	s := d.Status
	counts := fmt.Sprintf("%d of %d available, %d ready, %d of the newest template", s.AvailableReplicas, want, s.ReadyReplicas, s.UpdatedReplicas)
	available, progressing := deploymentCondition(d, appsv1.DeploymentAvailable), deploymentCondition(d, appsv1.DeploymentProgressing)
	newest, older := r.replicaSets(ctx, d)
	sum := func(f *Finding) *Finding {
		f.saw(o.String()+" .status", counts)
		if progressing.Reason == "ProgressDeadlineExceeded" {
			f.sawAt(o.String()+" .status.conditions[Progressing]",
				"False, "+progressing.Reason+": "+progressing.Message, progressing.LastTransitionTime)
		}
		serving := int32(0)
		for _, rs := range older {
			serving += rs.Status.ReadyReplicas
		}
		if serving > 0 && f.Status == Broken {
			f.saw(o.String(), fmt.Sprintf("the rollout has stopped; %d pods of the previous template are ready and serve", serving))
			f.do("To go back to the previous template:", kubectl(d.Namespace, "rollout undo deployment/%s", d.Name))
		}
		return f.roomToRoll(o, d)
	}
	if d.Spec.Paused && s.UpdatedReplicas < want {
		f := broken(RolloutPaused, fmt.Sprintf("%s is paused: a change of its template or scale waits until it is resumed", o)).
			since(progressing.LastTransitionTime).saw(o.String()+" .spec.paused", "true")
		return sum(f.not(ProgressDeadline, "the rollout takes too long", "it is not under way").
			do(kubectl(d.Namespace, "rollout resume deployment/%s", d.Name))), nil
	}
	if want == 0 && s.Replicas == 0 {
		return found(Healthy, ScaledToZero, fmt.Sprintf("%s is scaled to zero: it wants no pods", o)).saw(o.String()+" .spec.replicas", "0").
			do(kubectl(d.Namespace, "scale deployment/%s --replicas=1", d.Name)), nil
	}
	var slow *Finding
	for _, rs := range append(newest, older...) {
		f, err := explainReplicaSet(ctx, r, rs)
		if err != nil || f == nil {
			continue
		}
		// A pod of the template before that fails while it is replaced does not matter.
		if f.Status == Broken && (len(newest) == 1 && rs == newest[0] || s.AvailableReplicas < want) {
			return sum(f.under(o, objectAs("replicaset", rs))), nil
		}
		if f.Status == Progressing && slow == nil {
			slow = f.under(o, objectAs("replicaset", rs))
		}
	}
	switch {
	case s.AvailableReplicas >= want && s.UpdatedReplicas >= want && s.Replicas == want:
		since := available.LastTransitionTime
		f := found(Healthy, OK, fmt.Sprintf("%s has all its %d pods available, since %s", o, want, clock(since))).since(since)
		return f.saw(o.String()+" .status", counts).
			sawAt(o.String()+" .status.conditions[Available]", firstOf(string(available.Status), "not set"), since), nil
	case progressing.Reason == "ReplicaSetCreateError" || progressing.Reason == "FailedCreate":
		return sum(refusedBy(o, "ReplicaSet", progressing.Message).since(progressing.LastTransitionTime)), nil
	case progressing.Reason == "ProgressDeadlineExceeded":
		f := broken(ProgressDeadline, fmt.Sprintf("the rollout of %s made no progress for longer than progressDeadlineSeconds (%d s)", o, deadlineOf(d))).
			since(progressing.LastTransitionTime)
		return sum(f.do("No pod shows a fault: check minReadySeconds, and whether pods come and go.",
			kubectl(d.Namespace, "rollout status deployment/%s", d.Name))), nil
	case slow != nil:
		return sum(slow), nil
	}
	return sum(found(Progressing, InProgress, fmt.Sprintf("in progress: %s is rolling out: %s", o, counts))), nil
}

func deadlineOf(d *appsv1.Deployment) int32 {
	if d.Spec.ProgressDeadlineSeconds == nil {
		return 600
	}
	return *d.Spec.ProgressDeadlineSeconds
}

// roomToRoll rules out that a rollout may neither add nor remove a pod: percentages may round to zero.
//
// Source: ResolveFenceposts in k8s.io/kubernetes/pkg/controller/deployment/util: both zero makes maxUnavailable one
func (f *Finding) roomToRoll(o Object, d *appsv1.Deployment) *Finding {
	u := d.Spec.Strategy.RollingUpdate
	if f.Status != Broken || u == nil || u.MaxSurge == nil || u.MaxUnavailable == nil {
		return f
	}
	surge, err1 := intstr.GetScaledValueFromIntOrPercent(u.MaxSurge, int(number(d.Spec.Replicas)), true)
	gone, err2 := intstr.GetScaledValueFromIntOrPercent(u.MaxUnavailable, int(number(d.Spec.Replicas)), false)
	if err1 != nil || err2 != nil || surge != 0 || gone != 0 {
		return f
	}
	return f.not(RolloutNoRoom, "maxSurge and maxUnavailable both round to zero",
		fmt.Sprintf("%s .spec.strategy.rollingUpdate: %s and %s of %d pods are 0, but the controller then replaces one pod at a time",
			o, u.MaxSurge, u.MaxUnavailable, number(d.Spec.Replicas)))
}

// replicaSets are those of a Deployment with its newest template, at most one, and the older ones that have pods.
func (r *Reader) replicaSets(ctx context.Context, d *appsv1.Deployment) (newest, older []*appsv1.ReplicaSet) {
	selected := metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)}
	l, err := list(ctx, r, "replicasets.apps", d.Namespace, selected, r.Client.AppsV1().ReplicaSets(d.Namespace).List)
	if err != nil {
		return nil, nil
	}
	for i := range l.Items {
		rs := &l.Items[i]
		switch {
		case !metav1.IsControlledBy(rs, d):
		case rs.Annotations[revision] == d.Annotations[revision]:
			newest = append(newest, rs)
		case rs.Status.Replicas > 0:
			older = append(older, rs)
		}
	}
	return newest[:min(len(newest), 1)], older
}

func explainReplicaSet(ctx context.Context, r *Reader, rs *appsv1.ReplicaSet) (*Finding, error) {
	o, want, s := objectAs("replicaset", rs), number(rs.Spec.Replicas), rs.Status
	if f := behind(o, s.ObservedGeneration, rs); f != nil {
		return f, nil
	}
	if want == 0 && s.Replicas == 0 {
		f := found(Healthy, ScaledToZero, fmt.Sprintf("%s is scaled to zero: it wants no pods", o)).saw(o.String()+" .spec.replicas", "0")
		if owner := metav1.GetControllerOf(rs); owner != nil {
			f.saw(o.String()+" .metadata.ownerReferences", "its "+strings.ToLower(owner.Kind)+"/"+owner.Name+" sets the scale")
		}
		return f, nil
	}
	for _, c := range s.Conditions {
		if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue {
			f := refusedBy(o, "pod", c.Message).since(c.LastTransitionTime)
			f.sawAt(o.String()+" .status.conditions[ReplicaFailure]", c.Reason+": "+c.Message, c.LastTransitionTime)
			return f.saw(o.String()+" .status", fmt.Sprintf("%d of %d pods exist", s.Replicas, want)), nil
		}
	}
	return r.byPods(ctx, o, r.owned(ctx, rs, rs.Spec.Selector), want, s.Replicas, s.AvailableReplicas), nil
}

// byPods explains an object by the pods that it controls.
func (r *Reader) byPods(ctx context.Context, o Object, pods []corev1.Pod, want, have, available int32) *Finding {
	f, pod := r.worst(ctx, pods)
	counts := fmt.Sprintf("%d of %d pods exist, %d available", have, want, available)
	if f != nil && (f.Status == Broken || available < want) {
		return f.saw(o.String()+" .status", counts).under(o, podObject(pod))
	}
	if available >= want {
		return found(Healthy, OK, fmt.Sprintf("%s has all its %d pods available", o, want)).saw(o.String()+" .status", counts)
	}
	return found(Progressing, InProgress, fmt.Sprintf("in progress: %s: %s", o, counts)).saw(o.String()+" .status", counts)
}

// ordinal is the number of a StatefulSet's pod; -1: it is none.
func ordinal(set, pod string) int {
	n, err := strconv.Atoi(strings.TrimPrefix(pod, set+"-"))
	if err != nil || !strings.HasPrefix(pod, set+"-") {
		return -1
	}
	return n
}

func explainStatefulSet(ctx context.Context, r *Reader, set *appsv1.StatefulSet) (*Finding, error) {
	o, want, s := objectAs("statefulset", set), number(set.Spec.Replicas), set.Status
	if f := behind(o, s.ObservedGeneration, set); f != nil {
		return f, nil
	}
	if want == 0 && s.Replicas == 0 {
		return found(Healthy, ScaledToZero, fmt.Sprintf("%s is scaled to zero: it wants no pods", o)).saw(o.String()+" .spec.replicas", "0").
			do(kubectl(set.Namespace, "scale statefulset/%s --replicas=1", set.Name)), nil
	}
	pods, err := r.Pods(ctx, set.Namespace, metav1.FormatLabelSelector(set.Spec.Selector))
	if err != nil {
		return nil, nil
	}
	var own []corev1.Pod // those that are deleted too: the next waits until they are gone
	for _, pod := range pods {
		if metav1.IsControlledBy(&pod, set) {
			own = append(own, pod)
		}
	}
	slices.SortFunc(own, func(a, b corev1.Pod) int { return ordinal(set.Name, a.Name) - ordinal(set.Name, b.Name) })
	counts := fmt.Sprintf("%d of %d pods exist, %d available, %d of the newest template", s.Replicas, want, s.AvailableReplicas, s.UpdatedReplicas)
	if f, pod := r.worst(ctx, unreadyFirst(own)); f != nil && (f.Status == Broken || s.AvailableReplicas < want) {
		f.saw(o.String()+" .status", counts)
		next := ordinal(set.Name, pod.Name) + 1
		if set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement && int(s.Replicas) < int(want) && f.Status == Broken {
			f.saw(o.String()+" .spec.podManagementPolicy",
				fmt.Sprintf("OrderedReady: %s-%d waits until its predecessor %s is Ready", set.Name, next, pod.Name))
			f.not(PredecessorNotReady, fmt.Sprintf("pod/%s-%d is at fault", set.Name, next), "it does not exist yet: it waits for "+pod.Name)
		}
		// Source: https://kubernetes.io/docs/concepts/workloads/controllers/statefulset/#forced-rollback
		if rev := pod.Labels[appsv1.StatefulSetRevisionLabel]; rev != "" && s.UpdateRevision != "" && rev != s.UpdateRevision && f.Status == Broken {
			f.saw("pod/"+pod.Name+" .metadata.labels["+appsv1.StatefulSetRevisionLabel+"]",
				fmt.Sprintf("%s; the newest template is %s", rev, s.UpdateRevision))
			f.do("The pod has an older template, and is not replaced while it is not Ready. Delete it:",
				kubectl(set.Namespace, "delete pod %s", pod.Name))
		}
		return f.under(o, podObject(pod)), nil
	}
	if int32(len(own)) < want {
		if f := r.notCreated(ctx, o, set, "pod or claim"); f != nil {
			return f.saw(o.String()+" .status", counts), nil
		}
	}
	u := set.Spec.UpdateStrategy
	held := s.CurrentRevision != s.UpdateRevision && s.UpdateRevision != ""
	switch {
	case s.AvailableReplicas < want:
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s: %s", o, counts)).saw(o.String()+" .status", counts), nil
	case held && u.RollingUpdate != nil && u.RollingUpdate.Partition != nil && *u.RollingUpdate.Partition > 0:
		partition := *u.RollingUpdate.Partition
		f := found(Healthy, PartitionHolds, fmt.Sprintf("%s has all its %d pods available; "+
			"its partition keeps those below ordinal %d on the previous template", o, want, partition))
		return f.saw(o.String()+" .spec.updateStrategy.rollingUpdate.partition", fmt.Sprint(partition)).saw(o.String()+" .status", counts).
			do("To update them too: set the partition to 0."), nil
	case held && u.Type == appsv1.OnDeleteStatefulSetStrategyType:
		f := found(Healthy, PartitionHolds, fmt.Sprintf("%s has all its %d pods available; "+
			"those of the previous template are replaced when they are deleted", o, want))
		return f.saw(o.String()+" .spec.updateStrategy.type", "OnDelete").saw(o.String()+" .status", counts).do("To update a pod: delete it."), nil
	}
	return found(Healthy, OK, fmt.Sprintf("%s has all its %d pods available", o, want)).saw(o.String()+" .status", counts), nil
}

// unreadyFirst moves pods that are not ready to the front and keeps the order otherwise.
func unreadyFirst(pods []corev1.Pod) []corev1.Pod {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, func(a, b corev1.Pod) int {
		return boolInt(podTrue(&a, corev1.PodReady)) - boolInt(podTrue(&b, corev1.PodReady))
	})
	return pods
}

func explainDaemonSet(ctx context.Context, r *Reader, d *appsv1.DaemonSet) (*Finding, error) {
	o, s := objectAs("daemonset", d), d.Status
	if f := behind(o, s.ObservedGeneration, d); f != nil {
		return f, nil
	}
	counts := fmt.Sprintf("%d nodes want a pod, %d have one, %d available, %d of the newest template",
		s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberAvailable, s.UpdatedNumberScheduled)
	if s.DesiredNumberScheduled == 0 {
		f := broken(NoNodeMatches, fmt.Sprintf("no node matches %s: it has no pods", o)).saw(o.String()+" .status", counts)
		if n := r.mismatches(ctx, f, d); n == 0 {
			f.Cause = fmt.Sprintf("the cluster has no node for %s", o)
		}
		return f.do("Label a node, correct nodeSelector or affinity, or add a toleration for the nodes' taints."), nil
	}
	if f, pod := r.worst(ctx, r.owned(ctx, d, d.Spec.Selector)); f != nil && (f.Status == Broken || s.NumberAvailable < s.DesiredNumberScheduled) {
		return f.saw(o.String()+" .status", counts).under(o, podObject(pod)), nil
	}
	if s.CurrentNumberScheduled < s.DesiredNumberScheduled {
		if f := r.notCreated(ctx, o, d, "pod"); f != nil {
			return f.saw(o.String()+" .status", counts), nil
		}
	}
	if s.NumberAvailable < s.DesiredNumberScheduled {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s: %s", o, counts)).saw(o.String()+" .status", counts), nil
	}
	f := found(Healthy, OK, fmt.Sprintf("%s has an available pod on each of the %d nodes that match", o, s.DesiredNumberScheduled))
	r.mismatches(ctx, f.saw(o.String()+" .status", counts), d)
	return f, nil
}

// mismatches adds why nodes get no pod of a DaemonSet, and returns the number of nodes.
//
// Source: predicates and AddOrUpdateDaemonPodTolerations in k8s.io/kubernetes/pkg/controller/daemon
func (r *Reader) mismatches(ctx context.Context, f *Finding, d *appsv1.DaemonSet) int {
	nodes, err := r.Nodes(ctx)
	if err != nil {
		return -1
	}
	pod := &corev1.Pod{Spec: d.Spec.Template.Spec}
	tolerations := slices.Clone(pod.Spec.Tolerations)
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable, corev1.TaintNodeDiskPressure, corev1.TaintNodeMemoryPressure,
		corev1.TaintNodePIDPressure, corev1.TaintNodeUnschedulable, corev1.TaintNodeNetworkUnavailable} {
		tolerations = append(tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists})
	}
	told := 0
	for _, node := range nodes {
		var why string
		matches, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(&node)
		if err != nil || !matches {
			why = "does not match " + selectorText(&pod.Spec)
		} else if taint, has := corev1helpers.FindMatchingUntoleratedTaint(klog.Background(), node.Spec.Taints, tolerations, func(t *corev1.Taint) bool {
			return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
		}, true); has {
			why = fmt.Sprintf("has the taint %s, which the pod template does not tolerate", taint.ToString())
		}
		if why != "" && told < maxPods {
			told++
			f.saw("node/"+node.Name, why)
		}
	}
	return len(nodes)
}

func selectorText(spec *corev1.PodSpec) string {
	if len(spec.NodeSelector) > 0 {
		return "the nodeSelector " + metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: spec.NodeSelector})
	}
	return "the node affinity"
}
