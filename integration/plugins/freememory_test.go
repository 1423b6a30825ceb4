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

const (
	freeMemory        = "/opt/kubelith/examples/freememory"
	freeMemoryPlugin  = "plugins:\n- {name: freememory, kind: scheduling, path: " + freeMemory + ", timeout: 10s, config: {refresh: 1s}}\n"
	freeMemoryProfile = schedulerHead + "- schedulerName: plain\n"
)

// TestFreeMemory: the example packs pods by the machine's real use. Next to the server's node there is a larger one, a
// mere object without metrics; the profile plain shows what upstream's plugins do.
func TestFreeMemory(t *testing.T) {
	s := harness.Start(t, harness.Options{
		NoTestImage: true, ConfigYAML: header + freeMemoryPlugin,
		Args: []string{"--scheduler-arg=config=" + schedulerFile},
		Prepare: func(s *harness.Server) error {
			install(t, s, harness.BuildProgram(t, "../../plugins/examples/freememory"), freeMemory)
			return writeProfiles(s, freeMemoryProfile)
		},
	})
	rules, err := os.ReadFile("../../plugins/examples/freememory/rbac.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.KubectlInput(t, string(rules), "apply", "-f", "-")
	node := s.Node(t)
	used, total := measuredBy(t, s, node.Name), node.Status.Allocatable.Memory().Value()
	requested := requestedOn(t, s, node.Name)
	t.Logf("the node has %d MiB, of which %d are used and %d requested", total>>20, used>>20, requested>>20)
	if used <= requested {
		t.Skip("the node uses less memory than its pods request: its metrics decide nothing")
	}
	// By what is requested there is room for the first, by what is used only for the second.
	big, small := total-requested-(used-requested)/2, (total-used)/2
	makeNode(t, s, "larger", map[string]string{corev1.LabelHostname: "larger"}, "64", *resource.NewQuantity(10*total, resource.BinarySI))

	ns := s.Namespace(t)
	plain := s.Create(t, onNode(node.Name, by("plain", asking(ns, "plain", big))))
	bound(t, s, plain)
	if err := s.Client(t).CoreV1().Pods(ns).Delete(t.Context(), plain.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}); err != nil {
		t.Fatal(err)
	}
	refused(t, s, s.Create(t, onNode(node.Name, asking(ns, "too-big", big))), "1 Insufficient free memory")
	if on := bound(t, s, s.Create(t, asking(ns, "elsewhere", big))); on != "larger" {
		t.Errorf("a pod that asks for more than is free is on %s", on)
	}
	// The node with the metrics has the least room left; upstream prefers the other one.
	if on := bound(t, s, s.Create(t, by("plain", asking(ns, "spread", small)))); on != "larger" {
		t.Errorf("without the plugin a pod is on %s", on)
	}
	if on := bound(t, s, s.Create(t, asking(ns, "packed", small))); on != node.Name {
		t.Errorf("a pod is on %s, not where the least memory would be left", on)
	}
}

// measuredBy waits until the plugin has what the node uses, in bytes.
func measuredBy(t *testing.T, s *harness.Server, node string) (used int64) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^kubelith_plugin_own_freememory_used_bytes\{node="` + regexp.QuoteMeta(node) + `",plugin="freememory"\} (\S+)$`)
	waitMetrics(t, s, 90*time.Second, "the plugin to know what the node uses", func(text string) error {
		found := line.FindStringSubmatch(text)
		if found == nil {
			return errors.New("it does not report it")
		}
		value, err := strconv.ParseFloat(found[1], 64)
		if used = int64(value); err == nil && used < 10<<20 {
			err = fmt.Errorf("it reports %d bytes", used)
		}
		return err
	})
	return used
}

// requestedOn is the memory that the pods of a node request.
func requestedOn(t *testing.T, s *harness.Server, node string) (sum int64) {
	t.Helper()
	pods, err := s.Client(t).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		for _, c := range p.Spec.Containers {
			sum += c.Resources.Requests.Memory().Value()
		}
	}
	return sum
}

// asking is a pod that requests memory, in bytes.
func asking(ns, name string, memory int64) *corev1.Pod {
	pod := unbound(ns, name)
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	return pod
}

// onNode lets a pod run on one node only.
func onNode(node string, pod *corev1.Pod) *corev1.Pod {
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
	return pod
}
