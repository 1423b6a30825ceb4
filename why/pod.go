package why

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
)

// podObject names a pod in an answer.
func podObject(pod *corev1.Pod) Object { return objectAs("pod", pod) }

// explainPod explains a pod, in the order of its life: deleted, ended, scheduled, its node, volumes and network, init
// containers, containers, readiness.
func explainPod(ctx context.Context, r *Reader, pod *corev1.Pod) (*Finding, error) {
	steps := []func(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding{
		podPreempted, podDeleted, podEnded, podUnscheduled, podNode, podVolumes, podSandbox, podContainers, podGates,
	}
	for _, step := range steps {
		if f := step(ctx, r, pod); f != nil {
			return f, nil
		}
	}
	return podHealthy(ctx, r, pod), nil
}

// podCondition returns a condition of a pod, or nil.
func podCondition(pod *corev1.Pod, kind corev1.PodConditionType) *corev1.PodCondition {
	return first(pod.Status.Conditions, func(c *corev1.PodCondition) bool { return c.Type == kind })
}

// first returns the first that is so, or nil.
func first[T any](all []T, is func(*T) bool) *T {
	for i := range all {
		if is(&all[i]) {
			return &all[i]
		}
	}
	return nil
}

// podTrue reports whether a condition of a pod is True.
func podTrue(pod *corev1.Pod, kind corev1.PodConditionType) bool {
	c := podCondition(pod, kind)
	return c != nil && c.Status == corev1.ConditionTrue
}

// sawCondition adds a condition of a pod, if it has it.
func (f *Finding) sawCondition(pod *corev1.Pod, kind corev1.PodConditionType) *Finding {
	c := podCondition(pod, kind)
	if c == nil {
		return f
	}
	text := string(c.Status)
	for _, part := range []string{c.Reason, c.Message} {
		if part != "" {
			text += ", " + part
		}
	}
	return f.sawAt(fmt.Sprintf("pod/%s .status.conditions[%s]", pod.Name, kind), text, c.LastTransitionTime)
}

// sawEvent adds an Event, if there is one.
func (f *Finding) sawEvent(e *Event) *Finding {
	if e == nil {
		return f
	}
	text := e.Message
	if e.Count > 1 {
		text = fmt.Sprintf("%s (%d times)", text, e.Count)
	}
	return f.sawAt(e.Source(), text, e.Last)
}

// kubectl is a command that is about an object's namespace.
func kubectl(namespace, format string, args ...any) string {
	command := "kubelith kubectl "
	if namespace != "" {
		command += "-n " + namespace + " "
	}
	return command + fmt.Sprintf(format, args...)
}

// recreate is how to change what a pod's spec does not let change.
func recreate(pod *corev1.Pod, change string) string {
	if owner := metav1.GetControllerOf(pod); owner != nil {
		return fmt.Sprintf("%s in the pod template: this pod belongs to %s/%s.", change, strings.ToLower(owner.Kind), owner.Name)
	}
	return change + " and create the pod again."
}

// podPreempted explains a pod that had to give way.
func podPreempted(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	c := podCondition(pod, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || c.Reason != corev1.PodReasonPreemptionByScheduler {
		return nil
	}
	f := broken(Preempted, fmt.Sprintf("pod/%s was preempted by a pod of higher priority", pod.Name)).since(c.LastTransitionTime)
	f.sawCondition(pod, corev1.DisruptionTarget).sawEvent(r.LastEvent(ctx, pod, c.LastTransitionTime, "Preempted"))
	f.saw("pod/"+pod.Name+" .spec.priority", fmt.Sprint(corev1helpers.PodPriority(pod)))
	return f.not(Evicted, "the node was short of something", "the condition's reason is PreemptionByScheduler, not TerminationByKubelet").
		do("Add a node, or lower the requests of the pods of higher priority.",
			recreate(pod, "If this pod matters more, give it a higher priorityClassName"))
}

// podDeleted explains a pod that is deleted and still there.
func podDeleted(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if pod.DeletionTimestamp == nil {
		return nil
	}
	o, grace := podObject(pod), int64(0)
	if pod.DeletionGracePeriodSeconds != nil {
		grace = *pod.DeletionGracePeriodSeconds
	}
	asked := metav1.NewTime(pod.DeletionTimestamp.Add(-time.Duration(grace) * time.Second))
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	if node := podNode(ctx, r, pod); node != nil && !ended {
		node.sawAt("pod/"+pod.Name+" .metadata.deletionTimestamp",
			"deletion was requested; only its kubelet can confirm that it has ended", asked)
		return node
	}
	if len(pod.Finalizers) > 0 && (ended || r.age(*pod.DeletionTimestamp) > fresh) {
		return deletion(r, o, pod)
	}
	f := found(Progressing, Deleting, fmt.Sprintf("pod/%s is being deleted; its containers have until %s to end",
		pod.Name, clock(*pod.DeletionTimestamp)))
	if e := r.LastEvent(ctx, pod, asked, "FailedPreStopHook"); e != nil {
		f = broken(PreStopFailed, fmt.Sprintf("the preStop hook of pod/%s failed while the pod was being deleted: %s",
			pod.Name, hookFailure(e.Message)))
		f.sawEvent(e).do(recreate(pod, "Correct the preStop hook"),
			"The deletion goes on: the containers got SIGTERM right after the hook had failed.")
	} else if r.age(*pod.DeletionTimestamp) > time.Minute {
		f = broken(KillFailing, fmt.Sprintf("pod/%s should have ended %s ago, but its node has not reported its end",
			pod.Name, ago(r.age(*pod.DeletionTimestamp))))
		f.sawEvent(r.LastEvent(ctx, pod, asked, "FailedKillPod", "ExceededGracePeriod")).
			do("Find the process that cannot be killed, and read the kubelet's log on node " + pod.Spec.NodeName + ".")
	}
	return f.since(asked).
		sawAt("pod/"+pod.Name+" .metadata.deletionTimestamp", fmt.Sprintf("deletion was requested with %d s to end", grace), asked).
		not(FinalizerHolds, "a finalizer keeps it", ".metadata.finalizers is empty")
}

// hookFailure is a hook's failure without the kubelet's prefix.
//
// Source: Run in k8s.io/kubernetes/pkg/kubelet/lifecycle/handlers.go
func hookFailure(message string) string {
	_, after, ok := strings.Cut(message, "failed - error: ")
	if !ok {
		return message
	}
	return after
}

// podEnded explains a pod whose phase is final.
func podEnded(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	o := podObject(pod)
	switch pod.Status.Phase {
	case corev1.PodSucceeded:
		f := found(Healthy, Completed, fmt.Sprintf("all containers of %s have ended with exit code 0", o))
		for _, c := range containersOf(pod) {
			if end := c.ended(); end != nil && !c.init {
				f.sawAt(c.path()+"state.terminated", fmt.Sprintf("exit code %d", end.ExitCode), end.FinishedAt).since(end.FinishedAt)
			}
		}
		return f.saw(o.String()+" .status.phase", "Succeeded")
	case corev1.PodFailed:
	default:
		return nil
	}
	phase := func(f *Finding) *Finding {
		return f.saw(o.String()+" .status.phase", strings.TrimSuffix("Failed, "+pod.Status.Reason, ", ")).
			saw(o.String()+" .status.message", pod.Status.Message)
	}
	switch pod.Status.Reason {
	case "Evicted":
		f := broken(Evicted, fmt.Sprintf("node %s evicted %s: %s", pod.Spec.NodeName, o, firstOf(pod.Status.Message, "it gave no reason")))
		f = phase(f).sawCondition(pod, corev1.DisruptionTarget)
		f.sawEvent(r.LastEvent(ctx, pod, metav1.Time{}, "Evicted"))
		f.not(OOMKilled, "a container was killed for its memory limit", "no container's state has the reason OOMKilled")
		r.pressure(ctx, f, pod.Spec.NodeName)
		return f.do(recreate(pod, "Request what the pod really uses (requests protect from eviction), or raise the limit that the message names,"),
			"If the node itself is short: free space or memory on it, or add a node.")
	case "DeadlineExceeded":
		f := broken(DeadlineExceeded, fmt.Sprintf("%s ran longer than its activeDeadlineSeconds", o))
		if pod.Spec.ActiveDeadlineSeconds != nil {
			f.saw(o.String()+" .spec.activeDeadlineSeconds", fmt.Sprint(*pod.Spec.ActiveDeadlineSeconds))
		}
		if pod.Status.StartTime != nil {
			f.sawAt(o.String()+" .status.startTime", "started", *pod.Status.StartTime)
		}
		return phase(f).not(CrashLoop, "a container failed by itself", "the pod's reason is DeadlineExceeded: the kubelet stopped the containers").
			do(recreate(pod, "Raise activeDeadlineSeconds, or find out what took so long,"))
	}
	for _, c := range containersOf(pod) {
		if end := c.ended(); end != nil && end.ExitCode != 0 {
			return phase(r.crashed(ctx, pod, c, end, false))
		}
	}
	if pod.Status.Reason != "" {
		return phase(broken(NodeRefused, fmt.Sprintf("the kubelet on %s refused %s: %s",
			pod.Spec.NodeName, o, firstOf(pod.Status.Message, pod.Status.Reason)))).
			do("Create the pod again: the scheduler may find another node. A pod with spec.nodeName bypasses the scheduler and its checks.")
	}
	return phase(broken(ContainerFailed, fmt.Sprintf("%s has failed; its status does not say which container did", o))).
		do(kubectl(pod.Namespace, "describe pod %s", pod.Name))
}

// pressure rules out the pressures that a node does not report.
func (r *Reader) pressure(ctx context.Context, f *Finding, name string) {
	node, err := r.Node(ctx, name)
	if err != nil {
		return
	}
	for _, kind := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		if c := nodeCondition(node, kind); c != nil && c.Status == corev1.ConditionTrue {
			f.sawAt(fmt.Sprintf("node/%s .status.conditions[%s]", name, kind), "True, "+c.Message, c.LastTransitionTime)
		}
	}
}

// podNode explains a pod on a node that does not answer.
func podNode(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if pod.Spec.NodeName == "" {
		return nil
	}
	node, err := r.Node(ctx, pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		return broken(NodeGone, fmt.Sprintf("node %s, on which pod/%s should run, does not exist", pod.Spec.NodeName, pod.Name)).
			saw("pod/"+pod.Name+" .spec.nodeName", pod.Spec.NodeName).
			saw("GET nodes", fmt.Sprintf("the API server knows no node %q", pod.Spec.NodeName)).
			do("If the node was removed: nothing, the garbage collector deletes the pod. If nodeName was written by hand: remove it.")
	}
	if err != nil {
		return nil
	}
	f := nodeNotReady(ctx, r, node)
	if f == nil {
		return nil
	}
	f.sawCondition(pod, corev1.PodReady)
	return f.under(podObject(pod), nodeObject(node))
}

// podGates explains a pod whose containers are ready, and which is not.
func podGates(_ context.Context, r *Reader, pod *corev1.Pod) *Finding {
	if podTrue(pod, corev1.PodReady) || !podTrue(pod, corev1.ContainersReady) {
		return nil
	}
	for _, gate := range pod.Spec.ReadinessGates {
		if !podTrue(pod, gate.ConditionType) {
			f := broken(ReadinessGate, fmt.Sprintf("the containers of pod/%s are ready, but its readiness gate %s is not True: "+
				"no controller has set this condition", pod.Name, gate.ConditionType))
			if c := podCondition(pod, corev1.ContainersReady); r.age(c.LastTransitionTime) < fresh {
				f.Status, f.Code, f.Cause = Progressing, InProgress, "in progress: "+f.Cause
			}
			f.sawCondition(pod, gate.ConditionType).sawCondition(pod, corev1.ContainersReady)
			return f.do(fmt.Sprintf("Find the controller that sets the condition %s, and read its log.", gate.ConditionType)).
				not(ReadinessFailing, "a readiness probe fails", "the condition ContainersReady is True")
		}
	}
	return nil
}

// pullTime is how long the pull took that an Event is about.
//
// Source: k8s.io/kubernetes/pkg/kubelet/images/image_manager.go: Successfully pulled image "NAME" in TIME (TIME
// including waiting)
func pullTime(e Event) time.Duration {
	_, rest, ok := strings.Cut(e.Message, "\" in ")
	text, _, _ := strings.Cut(rest, " ")
	if e.Reason != "Pulled" || !ok {
		return 0
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0
	}
	return d
}

// podHealthy is the answer for a pod without a fault.
func podHealthy(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	o, ready := podObject(pod), podCondition(pod, corev1.PodReady)
	if ready == nil || ready.Status != corev1.ConditionTrue {
		f := found(Progressing, InProgress, fmt.Sprintf("in progress: %s has no fault and is not Ready yet", o)).since(pod.CreationTimestamp)
		return f.sawCondition(pod, corev1.PodReady).
			sawAt(o.String()+" .metadata.creationTimestamp", "created", pod.CreationTimestamp)
	}
	took := ready.LastTransitionTime.Sub(pod.CreationTimestamp.Time)
	f := found(Healthy, OK, fmt.Sprintf("%s has been Ready since %s, %s after its creation", o, clock(ready.LastTransitionTime), ago(took)))
	f.since(ready.LastTransitionTime).sawCondition(pod, corev1.PodReady)
	var pulling time.Duration
	for _, e := range r.Events(ctx, pod) {
		if d := pullTime(e); d > 0 && !e.Last.After(ready.LastTransitionTime.Time) {
			pulling += d
			f.sawEvent(&e)
		}
	}
	if took > 0 && pulling > 0 && pulling <= took {
		f.Cause += fmt.Sprintf(", %d %% of it for pulling images", 100*pulling/took)
	}
	for _, c := range containersOf(pod) {
		if c.status != nil && c.status.RestartCount > 0 && !c.init {
			text := fmt.Sprintf("%d", c.status.RestartCount)
			at := metav1.Time{}
			if last := c.status.LastTerminationState.Terminated; last != nil {
				text = fmt.Sprintf("%d; the last run ended with exit code %d, %s", c.status.RestartCount, last.ExitCode, last.Reason)
				at = last.FinishedAt
			}
			f.sawAt(c.path()+"restartCount", text, at)
		}
	}
	return f
}
