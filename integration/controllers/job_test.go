package controllers

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubelith.io/kubelith/integration/harness"
)

// job makes a Job whose pods carry app=NAME.
func job(name string, command ...string) *batchv1.Job {
	pod := template(name, "1")
	pod.Spec.Containers[0].Command = command
	pod.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{Template: pod}}
}

// waitJob creates a job and waits until it has the condition.
func waitJob(t testing.TB, s *harness.Server, ns, name string, want batchv1.JobConditionType) batchv1.JobCondition {
	t.Helper()
	var got batchv1.JobCondition
	harness.Eventually(t, harness.PodTimeout, fmt.Sprintf("job %s to be %s", name, want), func() error {
		j, err := s.Client(t).BatchV1().Jobs(ns).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, got = range j.Status.Conditions {
			if got.Type == want && got.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("active %d, succeeded %d, failed %d", j.Status.Active, j.Status.Succeeded, j.Status.Failed)
	})
	return got
}

func TestJobCompletions(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	atOnce := 0
	stop := recorder(t, s, ns, "work", func(_ watch.Event, _ *corev1.Pod, now map[string]*corev1.Pod) {
		active := 0
		for _, p := range now {
			if p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodRunning {
				active++
			}
		}
		atOnce = max(atOnce, active)
	})
	j := job("work", harness.Shell("echo index $JOB_COMPLETION_INDEX; sleep 0.5")...)
	j.Spec.Completions, j.Spec.Parallelism = ptr(int32(4)), ptr(int32(2))
	j.Spec.CompletionMode = ptr(batchv1.IndexedCompletion)
	if _, err := s.Client(t).BatchV1().Jobs(ns).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitJob(t, s, ns, "work", batchv1.JobComplete)
	stop()
	if atOnce != 2 {
		t.Errorf("%d pods at once; parallelism is 2", atOnce)
	}
	said := map[string]bool{}
	for _, p := range pods(t, s, ns, "work") {
		said[s.PodLogs(t, &p, "main")] = true
	}
	for i := range 4 {
		if !said[fmt.Sprintf("index %d\n", i)] {
			t.Errorf("no pod of index %d: %v", i, said)
		}
	}
}

func TestJobBackoff(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	j := job("fails", "/bin/probe", "exit", "3")
	j.Spec.BackoffLimit = ptr(int32(1))
	if _, err := s.Client(t).BatchV1().Jobs(ns).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if c := waitJob(t, s, ns, "fails", batchv1.JobFailed); c.Reason != batchv1.JobReasonBackoffLimitExceeded {
		t.Errorf("reason %s: %s", c.Reason, c.Message)
	}
	list := pods(t, s, ns, "fails")
	if len(list) != 2 {
		t.Errorf("%d pods; backoffLimit 1 means one retry", len(list))
	}
	for i := range list {
		if st := harness.Status(&list[i], "main"); st == nil || st.State.Terminated == nil || st.State.Terminated.ExitCode != 3 {
			t.Errorf("%s: %+v", list[i].Name, st)
		}
	}
}

// TestFinishedJobFreesCPU: the scheduler must not count a finished pod that still exists. Serial: it fills the node.
func TestFinishedJobFreesCPU(t *testing.T) {
	s := cluster.Get(t)
	ns := s.Namespace(t)
	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := resource.NewMilliQuantity(nodes.Items[0].Status.Allocatable.Cpu().MilliValue()*6/10, resource.DecimalSI)
	request := corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: *most}}

	j := job("first", "/bin/probe", "exit", "0", "4s")
	j.Spec.Template.Spec.Containers[0].Resources = request
	if _, err := s.Client(t).BatchV1().Jobs(ns).Create(t.Context(), j, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waitPods(t, s, ns, "first", 1)
	second := harness.Pod(ns, "second", "/bin/probe", "sleep")
	second.Spec.Containers[0].Resources = request
	second = s.Create(t, second)
	s.WaitPod(t, second, "to be unschedulable at first", func(p *corev1.Pod) error {
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("phase %s", p.Status.Phase)
	})
	waitJob(t, s, ns, "first", batchv1.JobComplete)
	began := time.Now()
	s.WaitRunning(t, second)
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the waiting pod ran only %s after the Job had ended", took)
	}
	if list := pods(t, s, ns, "first"); len(list) != 1 || list[0].Status.Phase != corev1.PodSucceeded {
		t.Errorf("the Job's pod is gone, so this test has shown nothing: %d pods", len(list))
	}
}

// TestCronJob waits for one real firing, at the next full minute.
func TestCronJob(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	client := s.Client(t).BatchV1()
	_, err := client.CronJobs(ns).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "tick"},
		Spec: batchv1.CronJobSpec{
			Schedule:    "* * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: job("tick", harness.Shell("echo ticked")...).Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	created := time.Now()
	s.Kubectl(t, "-n", ns, "create", "job", "by-hand", "--from=cronjob/tick")
	waitJob(t, s, ns, "by-hand", batchv1.JobComplete)

	var fired *batchv1.Job
	harness.Eventually(t, 80*time.Second, "the schedule to fire", func() error {
		jobs, err := client.Jobs(ns).List(context.Background(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range jobs.Items {
			if j := &jobs.Items[i]; j.Name != "by-hand" && metav1.GetControllerOf(j) != nil {
				fired = j
				return nil
			}
		}
		return fmt.Errorf("%d jobs", len(jobs.Items))
	})
	if full := created.Truncate(time.Minute).Add(time.Minute); fired.CreationTimestamp.Time.Before(full) || fired.CreationTimestamp.After(full.Add(75*time.Second)) {
		t.Errorf("fired at %s, not at about %s", fired.CreationTimestamp, full)
	}
	waitJob(t, s, ns, fired.Name, batchv1.JobComplete)
	for _, p := range pods(t, s, ns, "tick") {
		if out := s.PodLogs(t, &p, "main"); out != "ticked\n" {
			t.Errorf("%s said %q", p.Name, out)
		}
	}
}
