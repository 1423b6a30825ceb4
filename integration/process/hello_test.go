package process

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

// TestHello is what `make run` does: the application of manifests/hello.yaml runs from the embedded images and answers
// at its Service's address and, in a pod, by name.
func TestHello(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	manifest, err := os.ReadFile("../../manifests/hello.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, string(manifest), "apply", "-f", "-")
	defer s.KubectlInput(t, string(manifest), "delete", "--wait=false", "-f", "-")
	s.Kubectl(t, "rollout", "status", "deployment/hello", harness.Timeout(90*time.Second))
	s.Kubectl(t, "wait", "--for=condition=complete", "job/hello-by-name", harness.Timeout(90*time.Second))

	const greeting = "Hello from Kubelith\nhostname: hello-"
	if log := s.Kubectl(t, "logs", "job/hello-by-name"); !strings.Contains(log, greeting) {
		t.Errorf("by name, the pod of the Job got %q", log)
	}
	address := s.Kubectl(t, "get", "service", "hello", "-o=jsonpath={.spec.clusterIP}")
	harness.Eventually(t, 10*time.Second, "the Service to answer on the node", func() error {
		body, err := s.HTTPGet("http://" + address + "/")
		if err == nil && !strings.HasPrefix(body, greeting) {
			err = fmt.Errorf("the answer is %q", body)
		}
		return err
	})
	pod := s.Run(t, harness.Pod(s.Namespace(t), "visitor", "/bin/probe", "sleep"))
	for _, host := range []string{address, "hello.default.svc.cluster.local"} {
		if body := s.PodExec(t, pod, "main", "/bin/probe", "dial", "http://"+host+"/"); !strings.Contains(body, greeting) {
			t.Errorf("http://%s/ answers another pod %q", host, body)
		}
	}

	images := s.Kubectl(t, "get", "pods", "-l=app=hello", "-o=jsonpath={.items[*].status.containerStatuses[*].image}")
	if want := strings.TrimSpace(strings.Repeat("docker.io/kubelith/hello:1 ", 3)); images != want {
		t.Errorf("the images of the application are %q", images)
	}
	if pulls := s.Kubectl(t, "get", "events", "--field-selector=reason=Pulling", "-o=name"); pulls != "" {
		t.Errorf("images were pulled: %s", pulls)
	}
	if list := s.Exec(t, s.BinaryPath(), "ctr", "containers", "list"); !strings.Contains(list, "docker.io/kubelith/pause:1") {
		t.Errorf("no sandbox is made of the embedded pause image:\n%s", list)
	}
}
