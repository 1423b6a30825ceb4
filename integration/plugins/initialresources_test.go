package plugins

import (
	"errors"
	"fmt"
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

// initialResources is the annotation of a pod whose requests the plugin has set.
const initialResources = "kubernetes.io/initial-resources"

// testLearns: the example sets the requests of a pod to what others of the same image have used.
func testLearns(t *testing.T, s *harness.Server, ns string) {
	var first []*corev1.Pod
	for _, name := range []string{"first", "beside"} { // two are measured in half of the time
		pod := s.Run(t, harness.Pod(ns, name, "/bin/probe", "eat", "64"))
		if c := pod.Spec.Containers[0]; len(c.Resources.Requests) > 0 || pod.Annotations[initialResources] != "" {
			t.Errorf("%s, when nothing is known: %+v, %v", name, c.Resources, pod.Annotations)
		}
		first = append(first, pod)
	}
	waitMetrics(t, s, 4*time.Minute, "four measurements of the first pods", func(text string) error {
		if n, err := ownMetric(text, "initialresources_samples_total"); err != nil || n < 4 {
			return fmt.Errorf("there are %v: %w", n, err)
		}
		return nil
	})
	for _, pod := range first { // what comes after must not be measured
		remove(t, s, pod)
	}
	checkRequests(t, s, ns, "second")
}

// testHasLearnt: it does so also after a restart of the server and of the plugin, when no such pod runs.
func testHasLearnt(t *testing.T, s *harness.Server, ns string) {
	checkRequests(t, s, ns, "third")
	text, err := metricsOf(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ownMetric(text, "initialresources_samples_total"); err != nil || n > 2 {
		t.Errorf("%v measurements since the restart, %v: the test shows nothing", n, err)
	}
	before := waitPhase(t, s, "initialresources", "ready").PID
	if err := restartPlugin(t, s, "initialresources"); err != nil {
		t.Fatal(err)
	}
	if after := waitPhase(t, s, "initialresources", "ready").PID; after == before {
		t.Error("it is the same process")
	}
	checkRequests(t, s, ns, "fourth")
}

// checkRequests runs a pod whose first container gets requests by what the first pods have used, while its second one
// keeps its own.
func checkRequests(t *testing.T, s *harness.Server, ns, name string) {
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
	if got, want := running.Annotations[initialResources], "Initial Resources plugin set: cpu, memory request for container main"; got != want {
		t.Errorf("%s is annotated %q", name, got)
	}
	t.Logf("%s: %s CPU, %s memory", name, requests.Cpu(), requests.Memory())
	remove(t, s, running)
}

func remove(t *testing.T, s *harness.Server, pod *corev1.Pod) {
	t.Helper()
	if err := s.Client(t).CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
}

// ownMetric finds a metric of a plugin, without labels, among the server's.
func ownMetric(text, name string) (float64, error) {
	found := regexp.MustCompile(`(?m)^kubelith_plugin_own_` + name + `\{plugin="[^"]*"\} (\S+)$`).FindStringSubmatch(text)
	if found == nil {
		return 0, errors.New("it is not there")
	}
	return strconv.ParseFloat(found[1], 64)
}
