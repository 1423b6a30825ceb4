package compare

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// hollowKey=hollowValue labels the nodes that kwok plays; hollow pods select it.
const hollowKey, hollowValue = "type", "kwok"

// deployments is how many there are of all hollow pods.
const deployments = 10

// startKwok plays the hollow nodes until the test ends.
func (r *run) startKwok() {
	dir, kubeconfig := os.Getenv("KWOK"), r.c.kubeconfig
	if r.c.name == results.Kubelith {
		kubeconfig = harness.AdminKubeconfig // as seen from inside
	}
	args := []string{
		"--kubeconfig=" + kubeconfig, "--manage-all-nodes=false", "--manage-nodes-with-label-selector=" + hollowKey + "=" + hollowValue,
		"--node-lease-duration-seconds=40",
	}
	stages, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(stages) == 0 {
		r.t.Fatalf("no stages in %s: %v", dir, err)
	}
	for _, f := range stages {
		args = append(args, "--config="+f)
	}
	cmd := r.c.Command(filepath.Join(dir, "kwok"), args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.kwok = cmd.Process.Pid
	r.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := log.Bytes(); r.t.Failed() {
			r.t.Logf("the end of kwok's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
}

// kwokCPU is what kwok has used, in seconds.
func (r *run) kwokCPU() float64 {
	if r.kwok == 0 {
		return 0
	}
	return harness.CPUSeconds(r.t, r.kwok)
}

// makeNodes returns when all are Ready.
func (r *run) makeNodes(n int) time.Duration {
	began := time.Now()
	inParallel(r.t, n, func(i int) error {
		name := fmt.Sprintf("hollow-%05d", i)
		_, err := r.client.CoreV1().Nodes().Create(r.t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{hollowKey: hollowValue, corev1.LabelHostname: name}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "kwok", Effect: corev1.TaintEffectNoSchedule}}},
			Status:     corev1.NodeStatus{Capacity: capacity(), Allocatable: capacity()},
		}, metav1.CreateOptions{})
		return err
	})
	r.until("all nodes to be Ready", func() (string, bool) {
		ready := 0
		for _, node := range r.nodes() {
			if isNodeReady(&node) && node.Spec.PodCIDR != "" && len(node.Spec.Taints) == 1 { // that of their making alone
				ready++
			}
		}
		return fmt.Sprintf("%d of %d are", ready, n), ready >= n
	})
	return time.Since(began)
}

// notReady is how many hollow nodes the server holds for lost.
func (r *run) notReady() (n int) {
	for _, node := range r.nodes() {
		if !isNodeReady(&node) {
			n++
		}
	}
	return n
}

func (r *run) nodes() []corev1.Node {
	r.t.Helper()
	list, err := r.client.CoreV1().Nodes().List(r.t.Context(), metav1.ListOptions{ResourceVersion: "0", LabelSelector: hollowKey + "=" + hollowValue})
	if err != nil {
		r.t.Fatal(err)
	}
	return list.Items
}

func isNodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
}

// makePods creates the Deployments at once and measures until all pods run.
func (r *run) makePods(n int) []results.Sample {
	n = n / deployments * deployments
	progress := r.watchPods()
	began := time.Now()
	inParallel(r.t, deployments, func(i int) error {
		d := hollow(fmt.Sprint("hollow-", i), int32(n/deployments))
		_, err := r.client.AppsV1().Deployments(metav1.NamespaceDefault).Create(r.t.Context(), d, metav1.CreateOptions{})
		return err
	})
	r.until("all pods to run", func() (string, bool) {
		scheduled, running, _ := progress()
		return fmt.Sprintf("of %d, %d are scheduled and %d run", n, scheduled, running), running >= n
	})
	scheduled, running, at := progress()
	return []results.Sample{
		{Figure: results.PodsScheduled, Value: float64(scheduled) / at.scheduled.Sub(began).Seconds(), Detail: fmt.Sprintf("%d pods", scheduled)},
		{Figure: results.PodsRunning, Value: at.running.Sub(began).Seconds(), Detail: fmt.Sprintf("%d pods", running)},
	}
}

// moments are when the last pod was seen to be so.
type moments struct{ scheduled, running time.Time }

// watchPods counts the hollow pods that have a node, and those that run, until the test ends.
func (r *run) watchPods() func() (scheduled, running int, last moments) {
	var mu sync.Mutex
	var last moments
	withNode, run := map[types.UID]bool{}, map[types.UID]bool{}
	see := func(object any) {
		pod, ok := object.(*corev1.Pod)
		if !ok || pod.Spec.NodeSelector[hollowKey] != hollowValue {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if pod.Spec.NodeName != "" && !withNode[pod.UID] {
			withNode[pod.UID], last.scheduled = true, time.Now()
		}
		if pod.Status.Phase == corev1.PodRunning && !run[pod.UID] {
			run[pod.UID], last.running = true, time.Now()
		}
	}
	factory := informers.NewSharedInformerFactory(r.client, 0)
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }}); err != nil {
		r.t.Fatal(err)
	}
	factory.Start(r.t.Context().Done())
	factory.WaitForCacheSync(r.t.Context().Done())
	return func() (int, int, moments) {
		mu.Lock()
		defer mu.Unlock()
		return len(withNode), len(run), last
	}
}

func hollow(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{hollowKey: hollowValue},
					Tolerations:  []corev1.Toleration{{Key: "kwok", Operator: corev1.TolerationOpExists}},
					Containers: []corev1.Container{{
						Name: "c", Image: "hollow",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}},
					}},
				},
			},
		},
	}
}
