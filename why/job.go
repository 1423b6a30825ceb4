package why

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func jobCondition(job *batchv1.Job, kind batchv1.JobConditionType) *batchv1.JobCondition {
	return first(job.Status.Conditions, func(c *batchv1.JobCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

func explainJob(ctx context.Context, r *Reader, job *batchv1.Job) (*Finding, error) {
	o, s := objectAs("job", job), job.Status
	counts := fmt.Sprintf("%d active, %d succeeded, %d failed", s.Active, s.Succeeded, s.Failed)
	if c := jobCondition(job, batchv1.JobComplete); c != nil {
		return found(Healthy, Completed, fmt.Sprintf("%s has been complete since %s", o, clock(c.LastTransitionTime))).since(c.LastTransitionTime).
			sawAt(o.String()+" .status.conditions[Complete]", "True", c.LastTransitionTime).saw(o.String()+" .status", counts), nil
	}
	var pods []corev1.Pod
	if job.Spec.Selector != nil {
		pods = r.owned(ctx, job, job.Spec.Selector)
	}
	for _, kind := range []batchv1.JobConditionType{batchv1.JobFailed, batchv1.JobFailureTarget} {
		if c := jobCondition(job, kind); c != nil {
			return r.jobFailed(ctx, job, c, pods).saw(o.String()+" .status", counts), nil
		}
	}
	if is(job.Spec.Suspend) {
		return found(Healthy, JobSuspended, fmt.Sprintf("%s is suspended: it runs when spec.suspend is false", o)).saw(o.String()+" .spec.suspend", "true").
			do(kubectl(job.Namespace, `patch job %s --type=merge -p '{"spec":{"suspend":false}}'`, job.Name)), nil
	}
	ended := func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}
	if f, pod := r.worst(ctx, slices.DeleteFunc(slices.Clone(pods), ended)); f != nil {
		return f.saw(o.String()+" .status", counts).under(o, podObject(pod)), nil
	}
	if s.Active == 0 {
		if f := r.notCreated(ctx, o, job, "pod"); f != nil {
			return f.saw(o.String()+" .status", counts), nil
		}
	}
	f := found(Progressing, InProgress, fmt.Sprintf("in progress: %s runs: %s", o, counts)).saw(o.String()+" .status", counts)
	if s.StartTime != nil {
		f.since(*s.StartTime)
	}
	return f.sawLastRun(pods), nil
}

// jobFailed explains a job that is not tried again.
//
// Source: k8s.io/kubernetes/pkg/controller/job (newFailureCondition), reasons in k8s.io/api/batch/v1
func (r *Reader) jobFailed(ctx context.Context, job *batchv1.Job, c *batchv1.JobCondition, pods []corev1.Pod) *Finding {
	o, limit := objectAs("job", job), int32(6)
	if job.Spec.BackoffLimit != nil {
		limit = *job.Spec.BackoffLimit
	}
	again := "Correct the cause, then delete the job and create it again: a failed job does not run again."
	var f *Finding
	switch c.Reason {
	case batchv1.JobReasonBackoffLimitExceeded:
		f = broken(JobBackoffLimit, fmt.Sprintf("%s has failed: its pods failed more often than backoffLimit (%d) allows%s", o, limit, lastExit(pods)))
		f.saw(o.String()+" .spec.backoffLimit", fmt.Sprint(limit)).
			not(JobDeadline, "it took too long", "the condition's reason is BackoffLimitExceeded")
	case batchv1.JobReasonDeadlineExceeded:
		seconds := int64(0)
		if job.Spec.ActiveDeadlineSeconds != nil {
			seconds = *job.Spec.ActiveDeadlineSeconds
		}
		f = broken(JobDeadline, fmt.Sprintf("%s has failed: it was not complete after activeDeadlineSeconds (%d s)", o, seconds))
		f.saw(o.String()+" .spec.activeDeadlineSeconds", fmt.Sprint(seconds)).
			not(JobBackoffLimit, "its pods failed too often",
				fmt.Sprintf("%d of them failed; the condition's reason is DeadlineExceeded", job.Status.Failed))
	case batchv1.JobReasonPodFailurePolicy:
		f = broken(JobFailurePolicy, fmt.Sprintf("%s has failed: its podFailurePolicy ends it: %s", o, c.Message))
		f.not(JobBackoffLimit, "its pods failed too often", "a rule of podFailurePolicy ended the job at once")
	case batchv1.JobReasonFailedIndexes, batchv1.JobReasonMaxFailedIndexesExceeded:
		f = broken(JobIndexesFailed, fmt.Sprintf("%s has failed: %s", o, firstOf(c.Message, c.Reason)))
		if job.Status.FailedIndexes != nil {
			f.saw(o.String()+" .status.failedIndexes", *job.Status.FailedIndexes)
		}
	default:
		f = broken(ConditionNotTrue, fmt.Sprintf("%s has failed: %s", o, firstOf(c.Message, c.Reason)))
	}
	f.since(c.LastTransitionTime).
		sawAt(o.String()+" .status.conditions["+string(c.Type)+"]", c.Reason+": "+c.Message, c.LastTransitionTime).
		sawLastRun(pods)
	// The evidence of the pod that failed last, with its log.
	if pod := lastFailed(pods); pod != nil {
		if p := r.podCause(ctx, pod); p != nil && p.Status == Broken {
			f.Evidence = append(f.Evidence, p.Evidence...)
		}
	}
	return f.do(again)
}

// lastFailed is the pod that failed last.
func lastFailed(pods []corev1.Pod) (last *corev1.Pod) {
	for i := range pods {
		if p := &pods[i]; p.Status.Phase == corev1.PodFailed && (last == nil || last.CreationTimestamp.Before(&p.CreationTimestamp)) {
			last = p
		}
	}
	return last
}

// failedRun is the container of a pod that ended with an error.
func failedRun(pod *corev1.Pod) (string, *corev1.ContainerStateTerminated) {
	if pod == nil {
		return "", nil
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
			if t != nil && t.ExitCode != 0 {
				return c.Name, t
			}
		}
	}
	return "", nil
}

func lastExit(pods []corev1.Pod) string {
	if name, t := failedRun(lastFailed(pods)); t != nil {
		return fmt.Sprintf("; the last time, container %s ended with exit code %d, %s", name, t.ExitCode, t.Reason)
	}
	return ""
}

func (f *Finding) sawLastRun(pods []corev1.Pod) *Finding {
	pod := lastFailed(pods)
	if name, t := failedRun(pod); t != nil {
		f.sawAt(fmt.Sprintf("pod/%s .status.containerStatuses[%s].state.terminated", pod.Name, name),
			fmt.Sprintf("exit code %d, %s", t.ExitCode, t.Reason), t.FinishedAt)
	}
	return f
}

func explainCronJob(ctx context.Context, r *Reader, c *batchv1.CronJob) (*Finding, error) {
	o, schedule := objectAs("cronjob", c), c.Spec.Schedule
	if is(c.Spec.Suspend) {
		return found(Healthy, CronJobSuspended, fmt.Sprintf("%s is suspended: it starts no jobs", o)).saw(o.String()+" .spec.suspend", "true").
			do(kubectl(c.Namespace, `patch cronjob %s --type=merge -p '{"spec":{"suspend":false}}'`, c.Name)), nil
	}
	if zone := c.Spec.TimeZone; zone != nil {
		// This program may lack time zones that the controller has: its Event confirms.
		if e := r.LastEvent(ctx, c, c.CreationTimestamp, "UnknownTimeZone"); e != nil {
			if _, err := time.LoadLocation(*zone); err != nil {
				return broken(TimeZoneInvalid, fmt.Sprintf("%s starts no jobs: its time zone %q does not exist", o, *zone)).
					saw(o.String()+" .spec.timeZone", *zone).sawEvent(e).
					do("Set spec.timeZone to a name of the tz database, such as Europe/Berlin, or remove it."), nil
			}
		}
		schedule = "TZ=" + *zone + " " + schedule
	}
	times, err := cron.ParseStandard(schedule)
	if err != nil {
		return broken(ScheduleInvalid, fmt.Sprintf("%s starts no jobs: its schedule %q cannot be parsed: %v", o, c.Spec.Schedule, err)).
			saw(o.String()+" .spec.schedule", c.Spec.Schedule).
			do("Correct spec.schedule: minute, hour, day of month, month, day of week."), nil
	}
	last := c.CreationTimestamp
	if c.Status.LastScheduleTime != nil {
		last = *c.Status.LastScheduleTime
	}
	due := times.Next(last.Time)
	var active *batchv1.Job
	if len(c.Status.Active) > 0 {
		name := c.Status.Active[0].Name
		active, err = r.Job(ctx, c.Namespace, name)
		switch {
		case apierrors.IsNotFound(err):
			active = nil // clients return an empty object with an error
		case err != nil:
			return found(Progressing, InProgress, fmt.Sprintf("in progress: job/%s of %s runs, which cannot be read", name, o)).
				saw(o.String()+" .status.active", "job/"+name), nil
		}
	}
	late := !due.IsZero() && r.now().Sub(due) > fresh
	if active != nil {
		f, err := explainJob(ctx, r, active)
		if err == nil && f.Status == Broken {
			return f.under(o, objectAs("job", active)), nil
		}
		if late && c.Spec.ConcurrencyPolicy == batchv1.ForbidConcurrent {
			f := found(Progressing, RunForbidden, fmt.Sprintf("%s skips the run due at %s: job/%s still runs, and concurrencyPolicy is Forbid",
				o, clock(metav1.NewTime(due)), active.Name))
			f.saw(o.String()+" .spec.concurrencyPolicy", "Forbid").
				sawAt(o.String()+" .status.active", "job/"+active.Name, active.CreationTimestamp)
			return f.not(ScheduleMissed, "the controller missed the time", "it waits for the job that runs").
				do("Nothing, if the job ends. To end a stuck run: set activeDeadlineSeconds in the job template, or delete the job."), nil
		}
		return found(Progressing, InProgress, fmt.Sprintf("in progress: job/%s of %s runs", active.Name, o)).
			sawAt(o.String()+" .status.active", "job/"+active.Name, active.CreationTimestamp), nil
	}
	if late {
		if f := r.notCreated(ctx, o, c, "job"); f != nil {
			return f, nil
		}
		f := broken(ScheduleMissed, fmt.Sprintf("%s was due at %s, but has started no job", o, clock(metav1.NewTime(due)))).since(metav1.NewTime(due))
		f.saw(o.String()+" .spec.schedule", c.Spec.Schedule).sawAt(o.String()+" .status.lastScheduleTime", clock(last), last)
		if d := c.Spec.StartingDeadlineSeconds; d != nil {
			f.saw(o.String()+" .spec.startingDeadlineSeconds", fmt.Sprint(*d))
			f.do("The controller checks every 10 s: with a lower startingDeadlineSeconds it misses runs. Raise it.")
		}
		f.sawEvent(r.LastEvent(ctx, c, last, "MissSchedule", "TooManyMissedTimes", "JobAlreadyActive"))
		return f.do("The controller starts the last missed run when it runs again, within startingDeadlineSeconds."), nil
	}
	if job := r.newest(ctx, c); job != nil {
		if f, err := explainJob(ctx, r, job); err == nil && f.Status == Broken {
			return f.under(o, objectAs("job", job)), nil
		}
	}
	f := found(Healthy, OK, fmt.Sprintf("%s is on schedule: its next run is due at %s", o, clock(metav1.NewTime(due))))
	f.saw(o.String()+" .spec.schedule", c.Spec.Schedule)
	if c.Status.LastScheduleTime != nil {
		f.sawAt(o.String()+" .status.lastScheduleTime", clock(last), last)
	}
	return f, nil
}

// newest is the last job of a CronJob.
func (r *Reader) newest(ctx context.Context, c *batchv1.CronJob) (last *batchv1.Job) {
	l, err := list(ctx, r, "jobs.batch", c.Namespace, metav1.ListOptions{}, r.Client.BatchV1().Jobs(c.Namespace).List)
	if err != nil {
		return nil
	}
	for i := range l.Items {
		if j := &l.Items[i]; metav1.IsControlledBy(j, c) && (last == nil || last.CreationTimestamp.Before(&j.CreationTimestamp)) {
			last = j
		}
	}
	return last
}
