// Package metrics tests the resource metrics API on a real node: that its metrics are those of the running containers,
// and that kubectl top and the horizontal pod autoscaler work with them.
package metrics

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"kubelith.io/kubelith/integration/harness"
)

var cluster = harness.NewShared(harness.Options{Args: []string{"--controller-manager-arg=horizontal-pod-autoscaler-sync-period=5s"}})

func TestMain(m *testing.M) { harness.Main(m, cluster) }

// patience is ample time for metrics, which need two rounds of 15 s after a pod's start.
const patience = 90 * time.Second

// busy is a container that takes all the CPU that it gets: a fifth of a core.
func busy() corev1.Container {
	c := harness.Container("main", harness.Shell("while :; do :; done")...)
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("50m")},
		Limits:   corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("200m")},
	}
	return c
}

// usage is the part of a NodeMetrics or PodMetrics that the tests read.
type usage struct {
	Usage      corev1.ResourceList
	Containers []struct {
		Name  string
		Usage corev1.ResourceList
	}
}

// figures gets the object at a path below the API's root, and repeats that until the API has it.
func figures(t *testing.T, s *harness.Server, path string) (u usage) {
	t.Helper()
	harness.Eventually(t, patience, "metrics of "+path, func() error {
		res := s.TryKubectl(t, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/"+path)
		if res.Code != 0 {
			return fmt.Errorf("%s", res.Stderr)
		}
		return json.Unmarshal([]byte(res.Stdout), &u)
	})
	return u
}

// within fails unless a quantity is between two others.
func within(t *testing.T, what string, got resource.Quantity, least, most string) {
	t.Helper()
	if err := between(got, least, most); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func between(got resource.Quantity, least, most string) error {
	if got.Cmp(resource.MustParse(least)) < 0 || got.Cmp(resource.MustParse(most)) > 0 {
		return fmt.Errorf("%s, want %s to %s", got.String(), least, most)
	}
	return nil
}

// TestTop: the metrics are those of the running containers, and kubectl top shows them.
func TestTop(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	works := harness.Pod(ns, "works")
	works.Spec.Containers = []corev1.Container{busy()}
	eats := harness.Pod(ns, "eats", "/bin/probe", "eat", "64")
	eats.Spec.Containers = append(eats.Spec.Containers, harness.Container("idle", "sleep", "1000"))
	ends := harness.Pod(ns, "ends", "true")
	s.Create(t, works)
	s.Create(t, eats)
	s.RunToEnd(t, ends)
	s.WaitRunning(t, eats)

	// The first sample may be of their start.
	harness.Eventually(t, patience, "the memory of what eats 64 MiB and of sleep", func() error {
		pod := figures(t, s, "namespaces/"+ns+"/pods/eats")
		if len(pod.Containers) != 2 {
			return harness.Permanent(fmt.Errorf("containers: %v", pod.Containers))
		}
		for _, c := range pod.Containers {
			least, most := "1", "4Mi"
			if c.Name == "main" {
				least, most = "64Mi", "80Mi"
			}
			if err := between(c.Usage[corev1.ResourceMemory], least, most); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
		}
		return nil
	})
	harness.Eventually(t, patience, "it to use a fifth of a core", func() error { // the tests beside this one use the others
		pod := figures(t, s, "namespaces/"+ns+"/pods/works")
		return between(pod.Containers[0].Usage[corev1.ResourceCPU], "50m", "250m")
	})

	nodes, err := s.Client(t).CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("%d nodes, %v", len(nodes.Items), err)
	}
	name := nodes.Items[0].Name
	node := figures(t, s, "nodes/"+name)
	within(t, "CPU of the node", node.Usage[corev1.ResourceCPU], "50m", nodes.Items[0].Status.Capacity.Cpu().String())
	within(t, "memory of the node", node.Usage[corev1.ResourceMemory], "64Mi", nodes.Items[0].Status.Capacity.Memory().String())

	if out := s.Kubectl(t, "top", "nodes", "--no-headers"); len(strings.Fields(out)) < 5 || strings.Fields(out)[0] != name {
		t.Errorf("kubectl top nodes printed %q", out)
	}
	out := s.Kubectl(t, "-n", ns, "top", "pods", "--no-headers", "--sum=false")
	for _, want := range []string{"works ", "eats "} {
		if !strings.Contains(out, want) {
			t.Errorf("kubectl top pods has no %q: %s", want, out)
		}
	}
	if strings.Contains(out, "ends ") {
		t.Errorf("kubectl top pods has the pod that ended: %s", out)
	}
	if out := s.Kubectl(t, "top", "pods", "-A", "--no-headers", "-l", "app=eats"); !strings.HasPrefix(strings.TrimSpace(out), ns) || strings.Count(out, "\n") != 1 {
		t.Errorf("kubectl top pods with a selector printed %q", out)
	}
	if res := s.TryKubectl(t, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/namespaces/"+ns+"/pods/ends"); res.Code == 0 {
		t.Errorf("a pod that ended has metrics: %s", res.Stdout)
	}
}

// TestWhoMayRead: a user with the role view in a namespace may read its metrics, others not.
func TestWhoMayRead(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	s.Kubectl(t, "-n", ns, "create", "rolebinding", "viewer", "--clusterrole=view", "--user=jane")
	may := func(want string, args ...string) {
		t.Helper()
		args = append([]string{"auth", "can-i", "list", "pods.metrics.k8s.io", "--as=jane"}, args...)
		harness.Eventually(t, 20*time.Second, strings.Join(args, " "), func() error {
			if got := strings.TrimSpace(s.TryKubectl(t, args...).Stdout); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	may("yes", "-n", ns)
	may("no", "-n", "kube-system")
}

// TestAutoscaler: a Deployment that is busy gets more pods, as far as it may.
func TestAutoscaler(t *testing.T) {
	t.Parallel()
	s := cluster.Get(t)
	ns := s.Namespace(t)
	client := s.Client(t)
	ctx := t.Context()
	one, target, grace := int32(1), int32(50), int64(1)
	labels := map[string]string{"app": "works"}
	if _, err := client.AppsV1().Deployments(ns).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "works"},
		Spec: appsv1.DeploymentSpec{
			Replicas: &one,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{busy()}, TerminationGracePeriodSeconds: &grace},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.AutoscalingV2().HorizontalPodAutoscalers(ns).Create(ctx, &autoscalingv2.HorizontalPodAutoscaler{
		ObjectMeta: metav1.ObjectMeta{Name: "works"},
		Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
			ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "Deployment", Name: "works"},
			MaxReplicas:    3,
			Metrics: []autoscalingv2.MetricSpec{{Type: autoscalingv2.ResourceMetricSourceType, Resource: &autoscalingv2.ResourceMetricSource{
				Name: corev1.ResourceCPU, Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType, AverageUtilization: &target},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, 2*patience, "three pods", func() error {
		h, err := client.AutoscalingV2().HorizontalPodAutoscalers(ns).Get(ctx, "works", metav1.GetOptions{})
		if err != nil {
			return err
		}
		d, err := client.AppsV1().Deployments(ns).Get(ctx, "works", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if d.Status.ReadyReplicas != 3 || len(h.Status.CurrentMetrics) == 0 || h.Status.CurrentMetrics[0].Resource == nil {
			return fmt.Errorf("%d pods are ready, the autoscaler has %v", d.Status.ReadyReplicas, h.Status.Conditions)
		}
		if u := h.Status.CurrentMetrics[0].Resource.Current.AverageUtilization; u == nil || *u <= target {
			return fmt.Errorf("the autoscaler sees the utilization %v", u)
		}
		return nil
	})
}

// apiServices is where the API's own object is.
var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

// TestDisable: without the component its API is gone, even if an earlier run registered it; a third party's is left
// alone in both cases.
func TestDisable(t *testing.T) {
	t.Parallel()
	const settings = "apiVersion: kubelith.io/v1alpha1\nkind: ServerConfig\n"
	const (
		enabled  = settings + "disable: [kubelet, containerd, proxy, dns]\n"
		disabled = settings + "disable: [kubelet, containerd, proxy, dns, metrics-server]\n"
	)
	s := harness.Start(t, harness.Options{ConfigYAML: enabled, NoWait: true, NoTestImage: true})
	restart := func(text string) {
		t.Helper()
		s.Stop(t)
		if err := os.WriteFile(s.Path("/etc/kubelith/config.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		s.Launch(t)
	}
	// object waits until the API's object is wanted: missing, "" for one that names no Service, or its Service's name.
	const missing = "missing"
	object := func(want string) {
		t.Helper()
		harness.Eventually(t, 60*time.Second, "the APIService: "+want, func() error {
			if res := s.TryKubectl(t, "get", "namespace", "default"); res.Code != 0 {
				return fmt.Errorf("%s", res.Stderr)
			}
			got, err := s.Dynamic(t).Resource(apiServices).Get(t.Context(), "v1beta1.metrics.k8s.io", metav1.GetOptions{})
			if apierrors.IsNotFound(err) && want == missing {
				return nil
			}
			if err != nil {
				return err
			}
			spec := got.Object["spec"].(map[string]any)
			service, _ := spec["service"].(map[string]any)
			if name, _ := service["name"].(string); name != want {
				return fmt.Errorf("it names the Service %q", name)
			}
			return nil
		})
	}
	object("")
	harness.Eventually(t, 20*time.Second, "the API", func() error {
		if res := s.TryKubectl(t, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"); res.Code != 0 {
			return fmt.Errorf("%s", res.Stderr)
		}
		return nil
	})

	restart(disabled)
	object(missing)
	if res := s.TryKubectl(t, "top", "nodes"); res.Code == 0 || !strings.Contains(res.Stderr, "Metrics API not available") {
		t.Errorf("kubectl top nodes: %s%s", res.Stdout, res.Stderr)
	}
	s.KubectlInput(t, `{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1beta1.metrics.k8s.io"}, "spec":
		{"group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
		 "service": {"namespace": "kube-system", "name": "theirs"}}}`, "create", "-f", "-")
	restart(disabled)
	object("theirs")
	restart(enabled)
	object("theirs")
	harness.Consistently(t, 3*time.Second, "a third party's API", func() error {
		if res := s.TryKubectl(t, "get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"); res.Code == 0 {
			return fmt.Errorf("it is answered by the process: %s", res.Stdout)
		}
		return nil
	})
}
