package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/integration/harness"
)

// slowDisk is how long a sync to disk takes in TestSlowDisk; KUBELITH_TEST_SYNC_DELAY has another duration.
const slowDisk = 100 * time.Millisecond

// slowSteps are what is reached on a slow disk, one after the other.
var slowSteps = []struct {
	what    string
	reached func(context.Context, kubernetes.Interface) error
}{
	{"Node is Ready", func(ctx context.Context, c kubernetes.Interface) error {
		nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, node := range nodes.Items {
			for _, condition := range node.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue {
					return nil
				}
			}
		}
		return fmt.Errorf("%d nodes, none of them Ready", len(nodes.Items))
	}},
	{"every component is ready", func(ctx context.Context, c kubernetes.Interface) error {
		text, err := c.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
		if err != nil {
			return err
		}
		return harness.AllUp(string(text))
	}},
	{"default/kubernetes has an endpoint", func(ctx context.Context, c kubernetes.Interface) error {
		slice, err := c.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil && len(slice.Endpoints) == 0 {
			err = errors.New("its EndpointSlice is empty")
		}
		return err
	}},
	{"plugin local is registered", func(ctx context.Context, c kubernetes.Interface) error {
		nodes, err := c.StorageV1().CSINodes().List(ctx, metav1.ListOptions{})
		if err == nil && (len(nodes.Items) == 0 || len(nodes.Items[0].Spec.Drivers) == 0) {
			err = errors.New("the CSINode has no driver")
		}
		return err
	}},
	{"a Deployment has its pod", func(ctx context.Context, c kubernetes.Interface) error {
		one, labels := int32(1), map[string]string{"app": "hello"}
		_, err := c.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "hello"},
			Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
					Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "hello", Image: "docker.io/kubelith/hello:1"}}}}},
		}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		d, err := c.AppsV1().Deployments("default").Get(ctx, "hello", metav1.GetOptions{})
		if err == nil && d.Status.ReadyReplicas != 1 {
			err = fmt.Errorf("%d pods are ready", d.Status.ReadyReplicas)
		}
		return err
	}},
}

// TestSlowDisk starts a new cluster on a disk that takes its time for each fsync and fdatasync: it gets there, and runs
// a pod, however long that takes. What is written for the process alone is not synced.
func TestSlowDisk(t *testing.T) {
	t.Parallel()
	harness.RequireProgram(t, "strace")
	delay := slowDisk
	if text := os.Getenv("KUBELITH_TEST_SYNC_DELAY"); text != "" {
		var err error
		if delay, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	s := harness.New(t, harness.Options{NoTestImage: true})
	trace := t.TempDir() + "/trace"
	args := []string{"--follow-forks", "--quiet=all", "--seccomp-bpf", "--trace=fsync,fdatasync", "--decode-fds=path", "--output=" + trace,
		fmt.Sprintf("--inject=fsync,fdatasync:delay_enter=%d", delay.Microseconds()), s.BinaryPath()}
	log, err := os.Create(t.TempDir() + "/log")
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := s.Command("strace", append(args, s.ServerArgs()...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	began := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			lines := strings.Split(string(text), "\n")
			t.Log(strings.Join(lines[max(0, len(lines)-60):], "\n"))
		}
	})
	steps := slowSteps
	harness.Eventually(t, 2*time.Minute+600*delay, "everything to work", func() error {
		select {
		case err := <-ended:
			t.Fatalf("the server has ended: %v", err)
		default:
		}
		if !exists(s, harness.AdminKubeconfig) {
			return errors.New("no kubeconfig yet")
		}
		for len(steps) > 0 {
			// A limit longer than the API's own: reads wait for the disk, too.
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			err := steps[0].reached(ctx, s.Client(t))
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", steps[0].what, err)
			}
			t.Logf("%s after %s with %s for each sync", steps[0].what, time.Since(began).Round(100*time.Millisecond), delay)
			steps = steps[1:]
		}
		return nil
	})
	synced, err := os.ReadFile(trace)
	if err != nil || len(synced) == 0 {
		t.Fatalf("no trace: %v", err)
	}
	for line := range strings.Lines(string(synced)) {
		if strings.Contains(line, "<"+harness.RunDir+"/p/") {
			t.Errorf("files of a plugin's process are synced: %s", line)
		}
	}
}
