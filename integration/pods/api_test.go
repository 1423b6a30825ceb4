package pods

import (
	"fmt"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/integration/testimage"
)

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
