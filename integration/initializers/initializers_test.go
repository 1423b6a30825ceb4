// Package initializers tests Initializers on a real cluster, with kubectl and with the SDK's examples:
// docs/older-ways.md.
package initializers

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/cluster"
	"kubelith.io/kubelith/integration/harness"
	"kubelith.io/kubelith/plugins/sdk/initializer"
)

func TestMain(m *testing.M) { harness.Main(m) }

// asWrittenThen is the object that descriptions of Initializers have their readers create.
const asWrittenThen = `apiVersion: admissionregistration.k8s.io/v1alpha1
kind: InitializerConfiguration
metadata: {name: custom-pod-initializer}
initializers:
- name: podimage.example.com
  rules: [{apiGroups: [""], apiVersions: ["v1"], resources: ["pods"]}]
`

// podImage is the initializer of these descriptions.
func podImage(image string) initializer.Initializer {
	return initializer.For("podimage.example.com", corev1.SchemeGroupVersion.WithResource("pods"), func(_ context.Context, pod *corev1.Pod) error {
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].Image = image
		}
		return nil
	})
}

// run runs an initializer until the test ends, or stop.
func run(t *testing.T, s *harness.Server, i initializer.Initializer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	config := s.RESTConfig(t)
	group.Go(func() {
		if err := initializer.Run(ctx, config, i); err != nil {
			t.Error(err)
		}
	})
	stop = func() {
		cancel()
		group.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// appear waits until an object is stored, hidden.
func appear(t *testing.T, s *harness.Server, path string) {
	t.Helper()
	harness.Eventually(t, 30*time.Second, "the hidden "+path, func() error {
		r := s.TryKubectl(t, "get", "--raw", path+"?includeUninitialized=true")
		if r.Code != 0 || !strings.Contains(r.Stdout, `"initializers":{"pending":[{"name":"podimage.example.com"}]}`) {
			return fmt.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		return nil
	})
}

// TestPods: no component acts on a hidden pod, not even after a restart; once initialized, it runs as it is then.
func TestPods(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{})
	client, ns := s.Client(t), s.Namespace(t)
	if out := s.KubectlInput(t, asWrittenThen, "create", "-f", "-"); !strings.Contains(out, "initializerconfiguration.admissionregistration.k8s.io/custom-pod-initializer created") {
		t.Errorf("kubectl printed %q", out)
	}
	wrong := strings.NewReplacer("podimage.example.com", "podimage", "custom-pod", "wrong").Replace(asWrittenThen)
	if cmd := s.KubectlCommand("create", "-f", "-"); true {
		cmd.Stdin = strings.NewReader(wrong)
		if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "initializers[0].name: Invalid value") {
			t.Errorf("a name that is not fully qualified: %s", out)
		}
	}

	created := make(chan error, 1)
	pod := harness.Pod(ns, "a", "sleep", "1000")
	image := pod.Spec.Containers[0].Image
	pod.Spec.Containers[0].Image = "docker.io/library/nowhere:1"
	go func() {
		answer, err := client.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{})
		if err == nil && answer.Spec.Containers[0].Image != image {
			err = fmt.Errorf("the creator gets the image %s", answer.Spec.Containers[0].Image)
		}
		created <- err
	}()
	path := "/api/v1/namespaces/" + ns + "/pods/a"
	appear(t, s, path)
	s.Deploy(t, harness.Pod(ns, "web", "sleep", "1000"), 2) // its ReplicaSet waits for its pods
	harness.Eventually(t, 30*time.Second, "the Deployment's pods", func() error {
		if out := s.Kubectl(t, "get", "--raw", "/api/v1/namespaces/"+ns+"/pods?includeUninitialized=true"); strings.Count(out, `"initializers":{`) < 2 {
			return fmt.Errorf("%s", out)
		}
		return nil
	})
	if out := s.Kubectl(t, "-n", ns, "get", "pods", "-o", "name"); strings.TrimSpace(out) != "" {
		t.Errorf("kubectl shows %s", out)
	}
	if r := s.TryKubectl(t, "-n", ns, "get", "pod", "a"); r.Code == 0 || !strings.Contains(r.Stderr, `pods "a" not found`) {
		t.Errorf("kubectl get printed %s%s", r.Stdout, r.Stderr)
	}
	if out := s.Kubectl(t, "get", "--raw", path+"?includeUninitialized=true"); strings.Contains(out, "nodeName") {
		t.Errorf("the scheduler has seen it: %s", out)
	}

	s.Kill9(t)
	if err := <-created; err == nil {
		t.Error("the creator did not wait")
	}
	s.Launch(t)
	s.WaitReady(t)
	appear(t, s, path)
	if _, err := client.CoreV1().Pods(ns).Get(t.Context(), "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after a restart: %v", err)
	}
	stop := run(t, s, podImage(image))
	running := s.WaitRunning(t, pod)
	if running.Spec.Containers[0].Image != image || running.Annotations != nil {
		t.Errorf("it runs as %v", running)
	}
	s.Kubectl(t, "-n", ns, "rollout", "status", "deployment/web", harness.Timeout(60*time.Second))
	s.Run(t, harness.Pod(ns, "b", "sleep", "1000"))

	// Without the initializer, a creator learns which one is missing. Without the configuration, no creator waits.
	stop()
	r := s.TryKubectl(t, "-n", ns, "create", "--request-timeout=60s", "--raw", "/api/v1/namespaces/"+ns+"/pods?timeout=10s", "-f", podFile(t, s, ns))
	if r.Code == 0 || !strings.Contains(r.Stderr, `initializer "podimage.example.com" has not finished within`) {
		t.Errorf("kubectl printed %s%s", r.Stdout, r.Stderr)
	}
	s.Kubectl(t, "-n", ns, "delete", "pod", "never")
	s.Kubectl(t, "delete", "initializerconfiguration", "custom-pod-initializer")
	s.Run(t, harness.Pod(ns, "c", "sleep", "1000"))

	// A namespace goes with what is hidden in it.
	s.KubectlInput(t, asWrittenThen, "create", "-f", "-")
	s.Kubectl(t, "create", "namespace", "gone")
	s.Kubectl(t, "-n", "gone", "wait", "--for=create", "serviceaccount/default", harness.Timeout(60*time.Second))
	if r := s.TryKubectl(t, "create", "--raw", "/api/v1/namespaces/gone/pods?includeUninitialized=true", "-f", podFile(t, s, "gone")); r.Code != 0 {
		t.Errorf("%s", r.Stderr)
	}
	s.Kubectl(t, "delete", "namespace", "gone", harness.Timeout(60*time.Second))
}

// podFile is a manifest in the server's sandbox.
func podFile(t *testing.T, s *harness.Server, ns string) string {
	t.Helper()
	file := "/tmp/never-" + ns + ".json"
	text := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"never","namespace":"` + ns + `"},"spec":{"containers":[{"name":"a","image":"nothing"}]}}`
	if err := os.WriteFile(s.Path(file), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestExamples: the examples do what they are there for, as programs that know the cluster by a kubeconfig.
func TestExamples(t *testing.T) {
	t.Parallel()
	s := harness.StartLibrary(t, cluster.Options{Node: true})
	client, ns := s.Client(t), s.Namespace(t)
	image := harness.Container("x").Image
	rule := func(name, resource string) string {
		return "- name: " + name + ".example.com\n  rules: [{apiGroups: [\"\"], apiVersions: [v1], resources: [" + resource + "]}]\n"
	}
	configuration := "apiVersion: admissionregistration.k8s.io/v1alpha1\nkind: InitializerConfiguration\nmetadata: {name: examples}\ninitializers:\n"
	for _, e := range [][2]string{{"sidecar", "pods"}, {"port80", "pods"}, {"certificate", "pods"}, {"secretlength", "secrets"}} {
		configuration += rule(e[0], e[1])
		start(t, s.Kubeconfig(), e[0])
	}
	if _, err := client.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "test-certificate"},
		StringData: map[string]string{"tls.crt": "the certificate of a test"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, configuration, "create", "-f", "-")

	pod := harness.Pod(ns, "all", harness.Shell("cat /etc/test-certificate/tls.crt; echo; sleep 1000")...)
	pod.Annotations, pod.Labels = map[string]string{"sidecar.example.com/image": image}, map[string]string{"test-certificate": "wanted"}
	running := s.Run(t, pod)
	if c := running.Spec.Containers; len(c) != 2 || c[1].Name != "sidecar" || c[1].Image != image || len(c[0].Ports) != 1 || c[0].Ports[0].ContainerPort != 80 {
		t.Errorf("containers %+v", c)
	}
	harness.Eventually(t, 20*time.Second, "the certificate", func() error {
		if logs := s.PodLogs(t, running, running.Spec.Containers[0].Name); strings.TrimSpace(logs) != "the certificate of a test" {
			return fmt.Errorf("the container logged %q", logs)
		}
		return nil
	})
	r := s.TryKubectl(t, "-n", ns, "create", "secret", "generic", "short", "--from-literal=password=1234567")
	if want := "secretlength.example.com: password has 7 characters: a Secret needs 20"; r.Code == 0 || !strings.Contains(r.Stderr, want) {
		t.Errorf("kubectl printed %q, want %q", r.Stderr, want)
	}
	if r := s.TryKubectl(t, "-n", ns, "get", "secret", "short"); r.Code == 0 {
		t.Error("the short Secret is there")
	}
	s.Kubectl(t, "-n", ns, "create", "secret", "generic", "long", "--from-literal=password=12345678901234567890")
}

// start runs an example until the test ends.
func start(t *testing.T, kubeconfig, name string) {
	t.Helper()
	cmd := exec.Command(harness.BuildProgram(t, "../../plugins/examples/initializers/"+name), "--kubeconfig", kubeconfig)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	})
}
