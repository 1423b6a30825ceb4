package streams

import (
	"bufio"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/integration/harness"
)

// TestLogs: whole, cut, timestamped, by container, and of both output streams.
func TestLogs(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := harness.Pod(ns, "talks", "/bin/probe", "print", "--count=5", "--every=10ms", "line")
	pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("other", harness.Shell("echo out; echo err >&2")...))
	s.RunToEnd(t, pod)
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"-c", "main"}, "line 1\nline 2\nline 3\nline 4\nline 5\n"},
		{[]string{"-c", "main", "--tail=2"}, "line 4\nline 5\n"},
		{[]string{"-c", "main", "--tail=0"}, ""},
		{[]string{"-c", "main", "--limit-bytes=9"}, "line 1\nli"},
		{[]string{"-c", "main", "--since-time=2100-01-01T00:00:00Z"}, ""},
	} {
		if got := s.Kubectl(t, append([]string{"-n", ns, "logs", "talks"}, tc.args...)...); got != tc.want {
			t.Errorf("logs %v: %q, not %q", tc.args, got, tc.want)
		}
	}
	if got := s.Kubectl(t, "-n", ns, "logs", "talks", "-c", "other"); !strings.Contains(got, "out\n") || !strings.Contains(got, "err\n") {
		t.Errorf("stdout and stderr together: %q", got)
	}
	first, _, _ := strings.Cut(s.Kubectl(t, "-n", ns, "logs", "talks", "-c", "main", "--timestamps"), "\n")
	stamp, text, _ := strings.Cut(first, " ")
	if at, err := time.Parse(time.RFC3339Nano, stamp); err != nil || time.Since(at).Abs() > 10*time.Minute || text != "line 1" {
		t.Errorf("with timestamps: %q, %v", first, err)
	}
	if res := s.TryKubectl(t, "-n", ns, "logs", "talks", "-c", "nobody"); res.Code == 0 || !strings.Contains(res.Stderr, "nobody") {
		t.Errorf("logs of a container that does not exist: %+v", res)
	}
}

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
	watchdog := time.AfterFunc(time.Minute, func() { cmd.Process.Kill() })
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
	if now, before := s.Kubectl(t, "-n", ns, "logs", "twice"), s.Kubectl(t, "-n", ns, "logs", "--previous", "twice"); now != "second\n" || before != "first\n" {
		t.Errorf("now %q, before %q", now, before)
	}
}
