package why

import (
	"context"
	"fmt"
	"math"
	"regexp"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/trace"
)

// container is a container of a pod with its status, which is nil before the kubelet has reported it.
type container struct {
	pod    *corev1.Pod
	spec   *corev1.Container
	status *corev1.ContainerStatus
	init   bool
}

// String names it in a sentence.
func (c container) String() string {
	if c.init {
		return "init container " + c.spec.Name
	}
	return "container " + c.spec.Name
}

func (c container) field() string {
	if c.init {
		return "initContainer"
	}
	return "container"
}

// path is the container's status as a source of evidence, specPath its spec.
func (c container) path() string {
	return fmt.Sprintf("pod/%s .status.%sStatuses[%s].", c.pod.Name, c.field(), c.spec.Name)
}

func (c container) specPath() string {
	return fmt.Sprintf("pod/%s .spec.%ss[%s]", c.pod.Name, c.field(), c.spec.Name)
}

// recurs reports whether a container has failed more than once: the first time, a new start may help.
func (c container) recurs() bool {
	waiting := c.status.State.Waiting
	return c.status.RestartCount > 1 || waiting != nil && waiting.Reason == "CrashLoopBackOff"
}

// ended is how the container's last run ended, if it does not run now.
func (c container) ended() *corev1.ContainerStateTerminated {
	if c.status == nil {
		return nil
	}
	if c.status.State.Terminated != nil {
		return c.status.State.Terminated
	}
	if c.status.State.Waiting != nil {
		return c.status.LastTerminationState.Terminated
	}
	return nil
}

// sidecar reports whether it is an init container that runs as long as the pod.
func (c container) sidecar() bool {
	return c.init && c.spec.RestartPolicy != nil && *c.spec.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// containersOf returns the containers of a pod in the order in which they start.
func containersOf(pod *corev1.Pod) []container {
	var all []container
	add := func(specs []corev1.Container, statuses []corev1.ContainerStatus, init bool) {
		for i := range specs {
			c := container{pod: pod, spec: &specs[i], init: init}
			for j := range statuses {
				if statuses[j].Name == specs[i].Name {
					c.status = &statuses[j]
				}
			}
			all = append(all, c)
		}
	}
	add(pod.Spec.InitContainers, pod.Status.InitContainerStatuses, true)
	add(pod.Spec.Containers, pod.Status.ContainerStatuses, false)
	return all
}

// podContainers explains a pod by the first container that has a fault, else by the first that is on its way.
func podContainers(ctx context.Context, r *Reader, pod *corev1.Pod) *Finding {
	var progress *Finding
	for _, c := range containersOf(pod) {
		f := r.container(ctx, pod, c)
		if f != nil && f.Status == Broken {
			return f
		}
		if f != nil && progress == nil {
			progress = f
		}
	}
	if podTrue(pod, corev1.PodReady) {
		return nil
	}
	return progress
}

// container explains one container; nil: it is as it should be, or has not been started.
func (r *Reader) container(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	if c.status == nil {
		return nil
	}
	state := c.status.State
	switch {
	case state.Waiting != nil:
		return r.waits(ctx, pod, c)
	case state.Terminated != nil:
		if state.Terminated.ExitCode == 0 && (c.init && !c.sidecar() || pod.Spec.RestartPolicy != corev1.RestartPolicyAlways) {
			return nil
		}
		return r.crashed(ctx, pod, c, state.Terminated, pod.Spec.RestartPolicy != corev1.RestartPolicyNever)
	case state.Running != nil:
		return r.runs(ctx, pod, c)
	}
	return nil
}

// waits explains a container that waits.
func (r *Reader) waits(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	waiting := c.status.State.Waiting
	if imageReasons[waiting.Reason] {
		return r.imageMissing(ctx, pod, c)
	}
	switch waiting.Reason {
	case "", "ContainerCreating", "PodInitializing":
		return r.starts(ctx, pod, c)
	case "CreateContainerConfigError":
		return r.configMissing(ctx, pod, c)
	case "CreateContainerError", "RunContainerError", "PreCreateHookError", "PreStartHookError":
		return r.notStarted(pod, c, waiting.Reason, waiting.Message, metav1.Time{}).
			saw(c.path()+"state.waiting", waiting.Reason+": "+waiting.Message)
	}
	if e := r.LastEvent(ctx, pod, pod.CreationTimestamp, "FailedPostStartHook"); c.spec.Lifecycle != nil && c.spec.Lifecycle.PostStart != nil &&
		(e != nil && about(e, c) || waiting.Reason == "PostStartHookError") {
		f := broken(PostStartFailed, fmt.Sprintf("the postStart hook of %s fails, so the kubelet ends the container: %s",
			c, hookFailure(firstOf(textOf(e), waiting.Message))))
		f.saw(c.path()+"state.waiting", waiting.Reason+": "+waiting.Message).sawEvent(e)
		return f.not(CrashLoop, "the container fails by itself", "the kubelet killed it after the hook had failed").
			do(recreate(pod, "Correct lifecycle.postStart"))
	}
	if last := c.status.LastTerminationState.Terminated; last != nil {
		return r.crashed(ctx, pod, c, last, true)
	}
	return broken(ContainerFailed, fmt.Sprintf("%s waits: %s", c, firstOf(waiting.Message, waiting.Reason))).
		saw(c.path()+"state.waiting", waiting.Reason+": "+waiting.Message).do(kubectl(pod.Namespace, "describe pod %s", pod.Name))
}

func textOf(e *Event) string {
	if e == nil {
		return ""
	}
	return e.Message
}

// about reports whether an Event is about a container.
func about(e *Event, c container) bool {
	path := e.InvolvedObject.FieldPath
	return path == fmt.Sprintf("spec.%ss{%s}", c.field(), c.spec.Name)
}

// starts is the answer for a container that is being created: what the kubelet does for it now.
func (r *Reader) starts(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	f := found(Progressing, InProgress, fmt.Sprintf("in progress: node %s is starting %s", pod.Spec.NodeName, c))
	f.saw(c.path()+"state.waiting", c.status.State.Waiting.Reason)
	if at := pod.Status.StartTime; at != nil {
		f.since(*at).sawAt("pod/"+pod.Name+" .status.startTime", "the kubelet took the pod", *at)
	}
	for _, e := range r.Events(ctx, pod) {
		if !about(&e, c) {
			continue
		}
		if e.Reason == "Pulling" {
			f.Cause = fmt.Sprintf("in progress: node %s has been pulling the image %s for %s", pod.Spec.NodeName, c.spec.Image, ago(r.age(e.Last)))
			f.sawEvent(&e)
		}
		break // only the last one
	}
	if c.init || len(pod.Spec.InitContainers) == 0 {
		return f
	}
	for _, other := range containersOf(pod) {
		if other.init && other.status != nil && other.status.State.Running != nil && !other.sidecar() {
			f.Cause = fmt.Sprintf("in progress: %s has been running for %s; the containers start when it has ended",
				other, ago(r.age(other.status.State.Running.StartedAt)))
			f.sawAt(other.path()+"state.running", "started", other.status.State.Running.StartedAt)
		}
	}
	return f
}

// notStarted explains a container that the runtime could not start, by the runtime's message.
func (r *Reader) notStarted(pod *corev1.Pod, c container, reason, message string, at metav1.Time) *Finding {
	command := strings.Join(append(append([]string{}, c.spec.Command...), c.spec.Args...), " ")
	what := fmt.Sprintf("%q", command)
	if program := executable.FindStringSubmatch(message); program != nil {
		what = program[1]
	} else if command == "" {
		what = "the command of the image"
	}
	runs := func(f *Finding) *Finding {
		f.since(at)
		if command != "" {
			f.saw(c.specPath()+" .command, .args", command)
		}
		return f
	}
	text := strings.ToLower(message)
	switch {
	case strings.Contains(text, "error mounting") || strings.Contains(text, "not a directory"):
		return broken(MountFailed, fmt.Sprintf("%s cannot be started: a volume cannot be mounted into it: %s", c, lastPart(message))).since(at).
			do("Check that mountPath and the volume are both a file or both a directory.")
	case strings.Contains(text, "subpath"):
		return broken(SubPathFailed, fmt.Sprintf("%s cannot be started: a subPath of its volumes cannot be mounted: %s", c, lastPart(message))).since(at).
			do("Check that the path exists in the volume and is a file or a directory, as the mount expects.")
	case strings.Contains(text, "executable file not found") || strings.Contains(text, "no such file or directory"):
		return runs(broken(ExecutableNotFound, fmt.Sprintf("%s cannot be started: its image %s has no program %s", c, c.spec.Image, what))).
			not(ImageNotFound, "the image is missing", "it was pulled: the runtime searched it for the program").
			not(PermissionDenied, "the program is not executable", "the runtime's message says that there is none").
			do(recreate(pod, "Correct the command: the path in the image, or a program in its PATH,"))
	case strings.Contains(text, "is a directory"):
		return runs(broken(PermissionDenied, fmt.Sprintf("%s cannot be started: %s is a directory, not a program", c, what))).
			do(recreate(pod, "Name the program in that directory as the command,"))
	case strings.Contains(text, "permission denied"):
		return runs(broken(PermissionDenied, fmt.Sprintf("%s cannot be started: %s may not be executed: permission denied", c, what))).
			not(ExecutableNotFound, "the image has no such program", "the message says permission denied, not that there is none").
			do("Build the image with the executable bit on that file (chmod +x), or run another program: " +
				"a directory or a plain file gives the same error.")
	case strings.Contains(text, "exec format error"):
		return runs(wrongArchitecture(pod, c))
	}
	return runs(broken(ContainerFailed, fmt.Sprintf("%s cannot be started: %s", c, lastPart(message)))).
		do("The message is the container runtime's; " + reason + " is the kubelet's reason.")
}

func wrongArchitecture(pod *corev1.Pod, c container) *Finding {
	return broken(ImageArchitecture, fmt.Sprintf("%s cannot be started: the program in its image %s is for another architecture than node %s",
		c, c.spec.Image, pod.Spec.NodeName)).
		do("Build the image for this architecture too, or select nodes of its architecture: nodeSelector kubernetes.io/arch.")
}

// executable finds the program in the message of runc.
//
// Source: github.com/opencontainers/runc/libcontainer (standard_init_linux.go): exec: "NAME": REASON
var executable = regexp.MustCompile(`exec: ("[^"]+")`)

// crashed explains a container whose last run ended; again: it will be started again.
func (r *Reader) crashed(ctx context.Context, pod *corev1.Pod, c container, end *corev1.ContainerStateTerminated, again bool) *Finding {
	where := c.path() + "lastState.terminated"
	if c.status.State.Terminated == end {
		where = c.path() + "state.terminated"
	}
	restarts := ""
	switch n := c.status.RestartCount; {
	case n == 1:
		restarts = ", 1 restart so far"
	case n > 1:
		restarts = fmt.Sprintf(", %d restarts so far", n)
	}
	done := func(f *Finding) *Finding {
		if again && !c.recurs() {
			f.Status, f.Cause = Progressing, "in progress: it is being restarted: "+f.Cause
		}
		f.since(end.FinishedAt).sawAt(where, firstOf(fmt.Sprintf("%s, exit code %d", end.Reason, end.ExitCode)), end.FinishedAt)
		f.saw(where+".message", end.Message)
		if w := c.status.State.Waiting; w != nil && w.Reason == "CrashLoopBackOff" {
			f.saw(c.path()+"state.waiting", w.Reason+": "+w.Message)
		}
		if c.status.RestartCount > 0 {
			f.saw(c.path()+"restartCount", fmt.Sprint(c.status.RestartCount))
		}
		return f
	}
	if end.Reason == "StartError" || end.Reason == "ContainerCannotRun" {
		return done(r.notStarted(pod, c, end.Reason, end.Message, end.FinishedAt))
	}
	run := r.lastRun(ctx, pod, c, end)
	if end.Reason == oomKilled {
		return done(r.oomKilled(pod, c, end, run))
	}
	killing := r.killedBy(ctx, pod, c, end)
	if killing != nil {
		return done(killing)
	}
	if run != nil && run.Message == oomKilled {
		return done(r.oomKilled(pod, c, end, run))
	}
	lines := r.lastLines(ctx, pod, c, end)
	ran := end.FinishedAt.Sub(end.StartedAt.Time)
	code, verb := CrashLoop, "keeps exiting"
	switch {
	case c.init:
		code, verb = InitContainerFailed, "fails, and the containers wait for it"
	case !again:
		code, verb = ContainerFailed, "has failed"
	case !c.recurs():
		verb = "has ended"
	}
	f := broken(code, fmt.Sprintf("%s %s: exit code %d%s, after %s%s", c, verb, end.ExitCode, meaning(end), ago(ran), restarts))
	if strings.Contains(lines, "exec format error") && ran < time.Second*2 {
		f = wrongArchitecture(pod, c)
	}
	if i := strings.LastIndex(lines, "\n"); lines != "" && f.Code != ImageArchitecture {
		f.Cause += fmt.Sprintf("; the last line of its log: %s", sentence(oneline.Shorten(lines[i+1:], 200)))
	}
	done(f)
	if lines != "" {
		f.saw("log of "+c.String()+", last lines", lines)
	}
	if limit, ok := c.spec.Resources.Limits[corev1.ResourceMemory]; ok && end.ExitCode == 137 {
		f.saw(c.specPath()+".resources.limits.memory", limit.String())
		f.do("Neither the kubelet nor, as far as the runtime saw, the OOM killer sent SIGKILL: " +
			"compare its memory with its limit anyway (kubelith kubectl top pod).")
	}
	f.not(OOMKilled, "it was killed for its memory limit", fmt.Sprintf("its reason is %s, not OOMKilled", firstOf(end.Reason, "empty")))
	if c.spec.LivenessProbe != nil {
		f.not(LivenessKills, "its liveness probe killed it", "there is no Event Killing of it at that time")
	}
	previous := ""
	if where != c.path()+"state.terminated" {
		previous = " --previous"
	}
	if end.ExitCode == 0 {
		f.do(recreate(pod, "A container of this pod must not end: run a server in the foreground, or use a Job,"))
	} else {
		f.do("Its log says why it ended:")
	}
	return f.do(kubectl(pod.Namespace, "logs %s -c %s%s", pod.Name, c.spec.Name, previous))
}

// meaning is what an exit code means by convention.
func meaning(end *corev1.ContainerStateTerminated) string {
	switch end.ExitCode {
	case 0:
		return " (no error)"
	case 126:
		return " (a shell: the program is not executable)"
	case 127:
		return " (a shell: there is no such program)"
	}
	if signal := end.ExitCode - 128; signal > 0 && signal < 32 {
		names := map[int32]string{2: "SIGINT", 4: "SIGILL", 6: "SIGABRT", 7: "SIGBUS", 8: "SIGFPE", 9: "SIGKILL", 11: "SIGSEGV", 15: "SIGTERM"}
		return fmt.Sprintf(" (%s)", firstOf(names[signal], fmt.Sprintf("signal %d", signal)))
	}
	return ""
}

// oomKilled is the reason of a container that the kernel killed for memory.
//
// Source: github.com/containerd/containerd/v2/internal/cri/server/helpers.go (oomExitReason).
const oomKilled = "OOMKilled"

// oomKilled explains a container that the kernel killed for memory. run is its record; nil: there is none.
func (r *Reader) oomKilled(pod *corev1.Pod, c container, end *corev1.ContainerStateTerminated, run *trace.Span) *Finding {
	limit, ok := c.spec.Resources.Limits[corev1.ResourceMemory]
	if c.status.Resources != nil {
		if actual, has := c.status.Resources.Limits[corev1.ResourceMemory]; has {
			limit, ok = actual, true
		}
	}
	peak := ""
	if run != nil && run.Peak > 0 {
		peak = mebibytes(run.Peak)
	}
	measured := func(f *Finding) *Finding {
		if peak != "" {
			f.sawAt("record: "+string(run.Stage)+" "+run.Name, "the cgroup's peak of memory was "+peak, metav1.NewTime(run.End))
		}
		if end.Reason != oomKilled {
			f.sawAt("record: "+string(run.Stage)+" "+run.Name,
				"the kernel counted a kill for memory in its cgroup, which the container runtime did not report", metav1.NewTime(run.End))
		}
		return f
	}
	if !ok {
		f := broken(OOMKilled, fmt.Sprintf("%s was OOM-killed without a memory limit: the node, or the pod as a whole, ran out of memory", c))
		return measured(f.saw(c.specPath()+".resources.limits.memory", "not set")).
			do(recreate(pod, "Set requests and a limit for its memory"), "Check what else uses the memory of node "+pod.Spec.NodeName+".")
	}
	used := ""
	if peak != "" {
		used = " (peak " + peak + ")"
	}
	f := broken(OOMKilled, fmt.Sprintf("%s was killed when it reached its memory limit of %s%s, %s after its start",
		c, limit.String(), used, ago(end.FinishedAt.Sub(end.StartedAt.Time))))
	measured(f.saw(c.specPath()+".resources.limits.memory", limit.String()))
	return f.not(CrashLoop, "it fails by itself", "the kernel ended it, for memory").
		not(Evicted, "the node was short of memory", "the pod was not evicted; the limit is the container's").
		do(recreate(pod, "Raise resources.limits.memory, or find out why it needs so much,"))
}

// mebibytes is a size as limits are written, rounded down to a tenth.
func mebibytes(n int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", math.Floor(float64(n)/(1<<20)*10)/10), ".0") + "Mi"
}

// killedBy explains a run that the kubelet ended because of a probe; nil: it did not.
//
// Source: k8s.io/kubernetes/pkg/kubelet/kuberuntime/kuberuntime_manager.go (computePodActions) for the wording of the
// Event Killing, the only place that names the probe.
func (r *Reader) killedBy(ctx context.Context, pod *corev1.Pod, c container, end *corev1.ContainerStateTerminated) *Finding {
	for _, e := range r.Events(ctx, pod) {
		if e.Reason != "Killing" || !about(&e, c) || e.Last.Before(&end.StartedAt) {
			continue
		}
		var code Code
		var probe, name, fix string
		switch {
		case strings.Contains(e.Message, "failed liveness probe"):
			code, probe, name = LivenessKills, "liveness probe", "Liveness"
			fix = "Correct the probe or what it asks, or give it more time (failureThreshold, timeoutSeconds),"
		case strings.Contains(e.Message, "failed startup probe"):
			code, probe, name = StartupProbeKills, "startup probe", "Startup"
			fix = "Give the start more time (startupProbe.failureThreshold x periodSeconds), or correct the probe,"
		case strings.Contains(e.Message, "PostStartHook"):
			hook := r.LastEvent(ctx, pod, end.StartedAt, "FailedPostStartHook")
			f := broken(PostStartFailed, fmt.Sprintf("the postStart hook of %s failed, so the kubelet ended the container: %s",
				c, firstOf(textOf(hook), e.Message)))
			return f.sawEvent(&e).do(recreate(pod, "Correct lifecycle.postStart"))
		default:
			continue
		}
		f := broken(code, fmt.Sprintf("the kubelet keeps killing %s: its %s fails", c, probe))
		if answer := r.probeFailure(ctx, pod, c, name, end.StartedAt); answer != nil {
			f.Cause += ": " + sentence(probeAnswer(answer.Message))
			f.sawEvent(answer)
		}
		return f.sawEvent(&e).not(CrashLoop, "it ends by itself", "the kubelet's Event Killing says which probe failed").
			not(OOMKilled, "it was killed for its memory limit", "its reason is "+firstOf(end.Reason, "empty")).do(recreate(pod, fix))
	}
	return nil
}

// probeFailure is the last Event about a failed probe of a container since a time. name is Liveness, Readiness or
// Startup.
//
// Source: k8s.io/kubernetes/pkg/kubelet/prober/prober.go (probe): the Event has the probe's name and its answer.
func (r *Reader) probeFailure(ctx context.Context, pod *corev1.Pod, c container, name string, since metav1.Time) *Event {
	for _, e := range r.Events(ctx, pod) {
		if e.Reason == "Unhealthy" && about(&e, c) && strings.HasPrefix(e.Message, name+" probe ") && !e.Last.Time.Before(since.Truncate(time.Second)) {
			return &e
		}
	}
	return nil
}

// probeAnswer is what a probe got.
func probeAnswer(message string) string {
	for _, at := range []string{" probe failed: ", " state: "} {
		if _, after, ok := strings.Cut(message, at); ok {
			return after
		}
	}
	return message
}

// runs explains a container that runs: not started for its startup probe, not ready, or just back from a crash.
func (r *Reader) runs(ctx context.Context, pod *corev1.Pod, c container) *Finding {
	running, last := c.status.State.Running, c.status.LastTerminationState.Terminated
	if c.init && !c.sidecar() {
		return found(Progressing, InProgress, fmt.Sprintf("in progress: %s has been running for %s; the containers start when it has ended",
			c, ago(r.age(running.StartedAt)))).
			since(running.StartedAt).sawAt(c.path()+"state.running", "started", running.StartedAt)
	}
	if last != nil && !c.init && r.fragile(c, running.StartedAt, last) {
		f := r.crashed(ctx, pod, c, last, true)
		return f.sawAt(c.path()+"state.running", "started again; this run is not longer than the last one yet", running.StartedAt)
	}
	if c.status.Started != nil && !*c.status.Started {
		return r.probing(ctx, pod, c, c.spec.StartupProbe, "Startup", StartupProbeFailing, "so it does not count as started")
	}
	if !c.status.Ready {
		return r.probing(ctx, pod, c, c.spec.ReadinessProbe, "Readiness", ReadinessFailing, "so it gets no traffic from Services")
	}
	return nil
}

// fragile reports whether a run that follows a failed one has not shown yet that it is better: it has no probe that
// shows this and has not outlived the last run. After ten minutes the kubelet forgets crashes too.
//
// Source: k8s.io/kubernetes/pkg/kubelet/kubelet.go (MaxContainerBackOff; client-go/util/flowcontrol resets after twice
// that)
func (r *Reader) fragile(c container, started metav1.Time, last *corev1.ContainerStateTerminated) bool {
	lasted := last.FinishedAt.Sub(last.StartedAt.Time)
	complete := last.ExitCode == 0 && c.pod.Spec.RestartPolicy != corev1.RestartPolicyAlways
	if complete || lasted > 10*time.Minute || c.spec.ReadinessProbe != nil && c.status.Ready {
		return false
	}
	return r.age(started) < lasted+fresh
}

// probing explains a running container whose probe has not succeeded.
func (r *Reader) probing(ctx context.Context, pod *corev1.Pod, c container, probe *corev1.Probe, name string, code Code, effect string) *Finding {
	running, kind := c.status.State.Running.StartedAt, strings.ToLower(name)
	e := r.probeFailure(ctx, pod, c, name, running)
	if e == nil || probe == nil {
		f := found(Progressing, InProgress, fmt.Sprintf("in progress: %s has been running for %s; its %s probe has not succeeded yet",
			c, ago(r.age(running)), kind))
		return f.since(running).sawAt(c.path()+"state.running", "started", running)
	}
	// The kubelet counts a probe as failed after failureThreshold times; before that, a start may just take its time.
	failures := time.Duration(max(probe.FailureThreshold, 1)*max(probe.PeriodSeconds, 1)) * time.Second
	patience := time.Duration(probe.InitialDelaySeconds)*time.Second + failures
	answer := sentence(oneline.Shorten(probeAnswer(e.Message), 300))
	f := broken(code, fmt.Sprintf("the %s probe of %s fails, %s: %s", kind, c, effect, answer))
	if r.age(running) < patience {
		f.Status, f.Code = Progressing, InProgress
		f.Cause = fmt.Sprintf("in progress: %s has been running for %s; its %s probe has not succeeded yet: %s",
			c, ago(r.age(running)), kind, answer)
	}
	f.sawEvent(e).saw(c.specPath()+"."+kind+"Probe", describeProbe(probe)).since(running)
	if code == ReadinessFailing {
		f.sawAt(c.path()+"ready", "false", metav1.Time{})
		f.not(CrashLoop, "the container fails", fmt.Sprintf("it has been running since %s, restart count %d", clock(running), c.status.RestartCount))
	}
	return f.do(fmt.Sprintf("Check the %s probe: is the port, path or command right, does the program listen on all addresses?", kind),
		kubectl(pod.Namespace, "logs %s -c %s", pod.Name, c.spec.Name))
}

// describeProbe is what a probe checks.
func describeProbe(p *corev1.Probe) string {
	every := fmt.Sprintf(", every %d s, %d s to answer, %d failures", p.PeriodSeconds, p.TimeoutSeconds, p.FailureThreshold)
	switch {
	case p.HTTPGet != nil:
		return fmt.Sprintf("GET %s on port %s%s", firstOf(p.HTTPGet.Path, "/"), p.HTTPGet.Port.String(), every)
	case p.TCPSocket != nil:
		return fmt.Sprintf("TCP connection to port %s%s", p.TCPSocket.Port.String(), every)
	case p.GRPC != nil:
		return fmt.Sprintf("gRPC health check on port %d%s", p.GRPC.Port, every)
	case p.Exec != nil:
		return strings.Join(p.Exec.Command, " ") + every
	}
	return "nothing" + every
}

// lastLines are the last lines of the log of a container's last run.
func (r *Reader) lastLines(ctx context.Context, pod *corev1.Pod, c container, end *corev1.ContainerStateTerminated) string {
	tail, limit := int64(5), int64(4096)
	what := fmt.Sprintf("get pods/log of pod/%s in namespace %s", pod.Name, pod.Namespace)
	text, err := once(r, what+" "+c.spec.Name+" "+end.ContainerID, func() ([]byte, error) {
		return r.Client.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &corev1.PodLogOptions{
			Container: c.spec.Name, TailLines: &tail, LimitBytes: &limit, Previous: c.status.State.Terminated != end,
		}).DoRaw(ctx)
	})
	if err != nil || strings.HasPrefix(string(text), "unable to retrieve container logs") {
		return ""
	}
	return strings.TrimSpace(strings.ToValidUTF8(string(text), "?"))
}
