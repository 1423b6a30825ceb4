package why

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func aJob(change func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: meta("web"), Spec: batchv1.JobSpec{Selector: web}}
	if change != nil {
		change(j)
	}
	return j
}

func jobHas(kind batchv1.JobConditionType, reason, message string) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Status.Conditions = []batchv1.JobCondition{{Type: kind, Status: "True", Reason: reason, Message: message, LastTransitionTime: before(time.Second)}}
	}
}

func TestJobs(t *testing.T) {
	none := corev1.ContainerState{}
	failedPod := podOf("Job", "web", "web-1", all(state(ended("Error", 7, time.Second, time.Second), none, 0, false), func(p *corev1.Pod) {
		p.Status.Phase, p.Spec.RestartPolicy = corev1.PodFailed, corev1.RestartPolicyNever
	}))
	yes := true
	refused := event("web", "uid-web", "Warning", "FailedCreate", `Error creating: pods "web-1" is forbidden: exceeded quota: few, requested: pods=1, used: pods=2, limited: pods=2`, time.Second)
	for name, c := range map[string]struct {
		job    func(*batchv1.Job)
		others []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"complete":              {jobHas(batchv1.JobComplete, "", ""), []runtime.Object{failedPod}, Healthy, Completed, "[Complete]: True"},
		"at its limit":          {jobHas(batchv1.JobFailed, "BackoffLimitExceeded", "Job has reached the specified backoff limit"), []runtime.Object{failedPod}, Broken, JobBackoffLimit, "exit code 7"},
		"too late":              {jobHas(batchv1.JobFailed, "DeadlineExceeded", "Job was active longer than specified deadline"), nil, Broken, JobDeadline, "DeadlineExceeded"},
		"ended by its policy":   {jobHas(batchv1.JobFailureTarget, "PodFailurePolicy", "Container app for pod ns/web-1 failed with exit code 7 matching FailJob rule at index 0"), nil, Broken, JobFailurePolicy, "rule at index 0"},
		"indexes":               {jobHas(batchv1.JobFailed, "FailedIndexes", "Job has failed indexes"), nil, Broken, JobIndexesFailed, "FailedIndexes"},
		"suspended":             {func(j *batchv1.Job) { j.Spec.Suspend = &yes }, nil, Healthy, JobSuspended, "suspend: true"},
		"one failed, one runs":  {func(j *batchv1.Job) { j.Status.Active = 1 }, []runtime.Object{failedPod, podOf("Job", "web", "web-2", state(runsFor(time.Second), none, 0, true))}, Progressing, InProgress, "exit code 7"},
		"refused":               {nil, []runtime.Object{refused}, Broken, QuotaExceeded, "few"},
		"refused, but complete": {jobHas(batchv1.JobComplete, "", ""), []runtime.Object{refused}, Healthy, Completed, "True"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{aJob(c.job), readyNode("node-1")}, c.others...)...)
			a := ask(t, r, target(batchv1.SchemeGroupVersion.WithKind("Job"), "jobs", "ns", "web"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
		})
	}
}

func TestCronJobs(t *testing.T) {
	yes, zone, moon := true, "Europe/Berlin", "Moon/Crater"
	hourly := func(last time.Duration, change func(*batchv1.CronJob)) *batchv1.CronJob {
		c := &batchv1.CronJob{ObjectMeta: meta("nightly"), Spec: batchv1.CronJobSpec{Schedule: "30 * * * *"}}
		at := before(last)
		c.Status.LastScheduleTime = &at
		if change != nil {
			change(c)
		}
		return c
	}
	job := func(change func(*batchv1.Job)) *batchv1.Job {
		j := aJob(change)
		ownedBy("CronJob", "nightly", &j.ObjectMeta)
		return j
	}
	runs := func(c *batchv1.CronJob) {
		c.Status.Active = []corev1.ObjectReference{{Kind: "Job", Name: "web"}}
		c.Spec.ConcurrencyPolicy = batchv1.ForbidConcurrent
	}
	unknown := event("nightly", "uid-nightly", "Warning", "UnknownTimeZone", "invalid timeZone", time.Second)
	failed := jobHas(batchv1.JobFailed, "BackoffLimitExceeded", "")
	for name, c := range map[string]struct {
		cron   *batchv1.CronJob
		others []runtime.Object
		status Status
		code   Code
		proof  string
	}{
		"on schedule":         {hourly(30*time.Minute, nil), nil, Healthy, OK, "30 * * * *"},
		"in its zone":         {hourly(30*time.Minute, func(c *batchv1.CronJob) { c.Spec.TimeZone = &zone }), nil, Healthy, OK, "30 * * * *"},
		"suspended":           {hourly(5*time.Hour, func(c *batchv1.CronJob) { c.Spec.Suspend = &yes }), nil, Healthy, CronJobSuspended, "true"},
		"missed":              {hourly(90*time.Minute, nil), nil, Broken, ScheduleMissed, "lastScheduleTime"},
		"no such zone":        {hourly(30*time.Minute, func(c *batchv1.CronJob) { c.Spec.TimeZone = &moon; c.CreationTimestamp = before(time.Hour) }), []runtime.Object{unknown}, Broken, TimeZoneInvalid, "Moon/Crater"},
		"no such schedule":    {hourly(30*time.Minute, func(c *batchv1.CronJob) { c.Spec.Schedule = "99 * * * *" }), nil, Broken, ScheduleInvalid, "99"},
		"the last still runs": {hourly(90*time.Minute, runs), []runtime.Object{job(nil)}, Progressing, RunForbidden, "Forbid"},
		"runs in time":        {hourly(30*time.Minute, runs), []runtime.Object{job(nil)}, Progressing, InProgress, "job/web"},
		"the last is gone":    {hourly(90*time.Minute, runs), nil, Broken, ScheduleMissed, "lastScheduleTime"},
		"the last failed":     {hourly(30*time.Minute, nil), []runtime.Object{job(failed)}, Broken, JobBackoffLimit, "BackoffLimitExceeded"},
		"another's failed":    {hourly(30*time.Minute, nil), []runtime.Object{aJob(failed)}, Healthy, OK, "30 * * * *"},
	} {
		t.Run(name, func(t *testing.T) {
			r, _ := reader(t, append([]runtime.Object{c.cron}, c.others...)...)
			a := ask(t, r, target(batchv1.SchemeGroupVersion.WithKind("CronJob"), "cronjobs", "ns", "nightly"))
			if a.Status != c.status || a.Code != c.code || !a.proves(c.proof) {
				t.Errorf("want %s %s with %q, got %+v", c.status, c.code, c.proof, a)
			}
		})
	}
}
