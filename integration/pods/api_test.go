package pods

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

// TestInClusterAccess asks the API from a pod, through the Service kubernetes, with the mounted token and CA.
func TestInClusterAccess(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	pod := s.Run(t, harness.Pod(ns, "client", "/bin/probe", "sleep"))
	path := "/api/v1/namespaces/" + ns + "/pods"
	ask := func(path string) (string, error) {
		out, _, err := s.TryPodExec(t, pod, "", "/bin/probe", "dial", "--token", path)
		return out, err
	}
	if out, err := ask(path); err == nil || !strings.HasPrefix(out, "403\n") || !strings.Contains(out, "system:serviceaccount:"+ns+":default") {
		t.Errorf("without a role: %v\n%s", err, out)
	}
	s.Kubectl(t, "-n", ns, "create", "role", "reader", "--verb=list", "--resource=pods")
	s.Kubectl(t, "-n", ns, "create", "rolebinding", "reader", "--role=reader", "--serviceaccount="+ns+":default")
	harness.Eventually(t, 15*time.Second, "the role to take effect", func() error {
		out, err := ask(path)
		if err != nil || !strings.HasPrefix(out, "200\n") || !strings.Contains(out, `"name":"client"`) {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
	if out, err := ask("/api/v1/namespaces/" + ns + "/secrets"); err == nil || !strings.HasPrefix(out, "403\n") {
		t.Errorf("the role allows more than its rules: %s", out)
	}
	if out, _, err := s.TryPodExec(t, pod, "", "/bin/probe", "dial", path); err == nil || !strings.HasPrefix(out, "403\n") && !strings.HasPrefix(out, "401\n") {
		t.Errorf("without a token: %v\n%s", err, out)
	}
}

// TestStaticPod: a manifest on disk runs without the API; its mirror pod can be seen, and deleted without effect.
func TestStaticPod(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	file := s.Path(staticPods + "/" + ns + ".yaml")
	manifest := fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: static, namespace: %s}
spec:
  terminationGracePeriodSeconds: 1
  containers: [{name: main, image: %q, imagePullPolicy: IfNotPresent, command: [/bin/probe, sleep]}]
`, ns, testimage.Ref)
	if err := os.WriteFile(file, []byte(manifest), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(file) })
	mirror := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "static-" + node(t, s).Name}}
	mirror = s.WaitRunning(t, mirror)
	pid := s.ContainerPID(t, mirror, "main")

	s.Kubectl(t, "-n", ns, "delete", "pod", mirror.Name, "--wait=false")
	s.WaitPod(t, mirror, "to be mirrored again", func(p *corev1.Pod) error {
		if p.UID == mirror.UID {
			return fmt.Errorf("it is the old mirror")
		}
		return nil
	})
	if !harness.Alive(pid) {
		t.Error("deleting the mirror pod ended the process")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, harness.PodTimeout, "the static pod to end", func() error {
		_, err := s.Client(t).CoreV1().Pods(ns).Get(t.Context(), mirror.Name, metav1.GetOptions{})
		if harness.Alive(pid) || !apierrors.IsNotFound(err) {
			return fmt.Errorf("process alive: %t; mirror: %v", harness.Alive(pid), err)
		}
		return nil
	})
}
