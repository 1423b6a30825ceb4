package pods

import (
	"bufio"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestLogsFollow: lines arrive while the container writes them, and the stream ends with the container.
func TestLogsFollow(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Run(t, harness.Pod(ns, "talks", harness.Shell("i=0; until [ -e /stop ]; do i=$((i+1)); echo line $i; sleep 0.2; done")...))
	cmd := s.KubectlCommand("-n", ns, "logs", "--follow", "talks")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	watchdog := time.AfterFunc(harness.Patience(time.Minute), func() { cmd.Process.Kill() })
	lines := bufio.NewScanner(out)
	for i := 1; i <= 5; i++ {
		if !lines.Scan() || lines.Text() != fmt.Sprint("line ", i) {
			t.Fatalf("line %d is %q", i, lines.Text())
		}
	}
	s.Kubectl(t, "-n", ns, "exec", "talks", "--", "touch", "/stop") // the container runs: the lines came live
	for lines.Scan() {
	}
	if err := cmd.Wait(); err != nil || !watchdog.Stop() {
		t.Errorf("kubectl logs --follow did not end with the container: %v", err)
	}
}

func TestLogsPrevious(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "twice", harness.Shell("if [ -e /data/second ]; then echo second; exec sleep 1000; fi; touch /data/second; echo first; exit 1")...)
	pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
	pod.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	pod.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	pod = s.Create(t, pod)
	s.WaitPod(t, pod, "to have been restarted", func(p *corev1.Pod) error {
		if st := harness.Status(p, "main"); st == nil || st.RestartCount != 1 {
			return errors.New("not yet")
		}
		return harness.PodReady(p)
	})
	harness.Eventually(t, 20*time.Second, "the logs", func() error {
		if now, before := s.Kubectl(t, "-n", ns, "logs", "twice"), s.Kubectl(t, "-n", ns, "logs", "--previous", "twice"); now != "second\n" || before != "first\n" {
			return fmt.Errorf("now %q, before %q", now, before)
		}
		return nil
	})
}
