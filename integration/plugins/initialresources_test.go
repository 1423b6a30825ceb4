package plugins

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"kubelith.io/kubelith/integration/harness"
)

// TestInitialResources: the example sets the requests of a pod to what another one of the same image has used, also
// after a restart of the server and of the plugin, when no such pod runs.
func TestInitialResources(t *testing.T) {
	t.Parallel()
	s := harness.Start(t, harness.Options{
		ConfigYAML: pluginsHeader + example("initialresources", "  config: {minSamples: 3, refresh: 1s}"),
		Prepare: func(s *harness.Server) error {
			putExample(t, s, examplesDir, "initialresources")
			return nil
		},
	})
	rules, err := os.ReadFile("../../plugins/examples/initialresources/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, string(rules), "apply", "-f", "-")
	ns := s.Namespace(t)
	const said = "kubernetes.io/initial-resources"

	first := s.Run(t, harness.Pod(ns, "first", "/bin/probe", "eat", "64"))
	if c := first.Spec.Containers[0]; len(c.Resources.Requests) > 0 || first.Annotations[said] != "" {
		t.Errorf("when nothing is known: %+v, %v", c.Resources, first.Annotations)
	}
	harness.Eventually(t, 4*time.Minute, "four measurements of the first pod", func() error {
		if n, err := ownMetric(t, s, "initialresources_samples_total"); err != nil || n < 4 {
			return fmt.Errorf("there are %v: %w", n, err)
		}
		return nil
	})
	check := func(name string) {
		t.Helper()
		pod := harness.Pod(ns, name, "sleep", "1000")
		pod.Spec.Containers = append(pod.Spec.Containers, harness.Container("fixed", "sleep", "1000"))
		own := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("7Mi"), corev1.ResourceCPU: resource.MustParse("7m")}
		pod.Spec.Containers[1].Resources.Requests = own
		running := s.Run(t, pod)
		requests := running.Spec.Containers[0].Resources.Requests
		if requests.Memory().Cmp(resource.MustParse("60Mi")) < 0 || requests.Memory().Cmp(resource.MustParse("90Mi")) > 0 || requests.Cpu().IsZero() || requests.Cpu().Cmp(resource.MustParse("1")) > 0 {
			t.Errorf("%s requests %v", name, requests)
		}
		if got := running.Spec.Containers[1].Resources.Requests; !got.Memory().Equal(own[corev1.ResourceMemory]) || !got.Cpu().Equal(own[corev1.ResourceCPU]) {
			t.Errorf("%s: its own requests became %v", name, got)
		}
		if got, want := running.Annotations[said], "Initial Resources plugin set: cpu, memory request for container main"; got != want {
			t.Errorf("%s is annotated %q", name, got)
		}
		t.Logf("%s: %s CPU, %s memory", name, requests.Cpu(), requests.Memory())
		remove(t, s, running)
	}
	remove(t, s, first) // what comes after must not be measured
	check("second")

	s.Restart(t)
	waitPhase(t, s, "initialresources", "ready")
	check("third")
	if n, err := ownMetric(t, s, "initialresources_samples_total"); err != nil || n > 2 {
		t.Errorf("%v measurements since the restart, %v: the test shows nothing", n, err)
	}
	before := waitPhase(t, s, "initialresources", "ready").PID
	if res := s.RunBinary(t, "plugin", "restart", "initialresources"); res.Code != 0 {
		t.Fatalf("%+v", res)
	}
	if after := waitPhase(t, s, "initialresources", "ready").PID; after == before {
		t.Error("it is the same process")
	}
	check("fourth")
}

func remove(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	if err := s.Client(t).CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
}

// ownMetric is a metric of a plugin without labels.
func ownMetric(t *testing.T, s *harness.Server, name string) (float64, error) {
	t.Helper()
	found := regexp.MustCompile(`(?m)^kubelith_plugin_own_` + name + `\{plugin="[^"]*"\} (\S+)$`).FindStringSubmatch(s.Kubectl(t, "get", "--raw=/metrics"))
	if found == nil {
		return 0, errors.New("it is not there")
	}
	return strconv.ParseFloat(found[1], 64)
}
