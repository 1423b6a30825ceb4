package scale

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

const (
	deployments = 10
	// patience is for a stage that does not end.
	patience = 20 * time.Minute
)

func TestScale(t *testing.T) {
	path := os.Getenv("BENCH_RESULTS")
	if path == "" {
		t.Skip("not a benchmark run: use make bench-scale")
	}
	store, err := results.Open(path, os.Getenv("BENCH_BUILD"))
	if err != nil {
		t.Fatal(err)
	}
	nodes, pods, idle := number(t, "SCALE_NODES"), number(t, "SCALE_PODS"), time.Duration(number(t, "IDLE_SECONDS"))*time.Second
	// A pod CIDR for each node: the default range has 256.
	s := harness.Start(t, harness.Options{NoTestImage: true, Env: []string{"KUBE_CACHE_MUTATION_DETECTOR=false"}, Args: []string{"--cluster-cidr=172.16.0.0/12"}})
	r := &run{t: t, s: s, store: store}
	time.Sleep(40 * time.Second) // it gives memory back half a minute after its start

	r.stage(results.ScaleEmpty, func() []results.Sample { time.Sleep(idle); return nil })
	r.startKwok()
	r.stage(results.ScaleNodes, func() []results.Sample {
		took := r.makeNodes(nodes)
		time.Sleep(idle)
		return []results.Sample{{Figure: results.NodesReady, Value: took.Seconds()}}
	})
	r.stage(results.ScaleMaking, func() []results.Sample { return r.makePods(pods) })
	time.Sleep(30 * time.Second)
	r.stage(results.ScalePods, func() []results.Sample { time.Sleep(idle); return nil })
}

func number(t *testing.T, variable string) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(variable))
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// run is one server on its way through the stages.
type run struct {
	t     *testing.T
	s     *harness.Server
	store *results.Store
}

// stage measures what the server uses and how it answers while f goes on.
func (r *run) stage(name string, f func() []results.Sample) {
	r.t.Helper()
	ask := startAsking(r.t, r.s.Client(r.t))
	cpu, began := harness.CPUSeconds(r.t, r.s.PID()), time.Now()
	samples := f()
	cpu, took := harness.CPUSeconds(r.t, r.s.PID())-cpu, time.Since(began)
	samples = append(samples, ask()...)
	samples = append(samples,
		results.Sample{Figure: results.ServerMemory, Value: harness.AnonymousMB(r.t, r.s.PID())},
		results.Sample{Figure: results.ServerCPU, Value: cpu / took.Seconds() * 100})
	for _, x := range samples {
		r.t.Logf("%s: %s: %.2f", name, x.Figure, x.Value)
	}
	if err := r.store.Add("scale", r.store.Rounds("scale", name)+1, name, samples...); err != nil {
		r.t.Fatal(err)
	}
}

// startKwok plays the nodes with the label type=kwok. The sandbox's end ends it.
func (r *run) startKwok() {
	dir := os.Getenv("KWOK")
	args := []string{
		"--kubeconfig=" + harness.AdminKubeconfig, "--manage-all-nodes=false", "--manage-nodes-with-label-selector=type=kwok",
		"--node-lease-duration-seconds=40",
	}
	stages, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(stages) == 0 {
		r.t.Fatalf("no stages in %s: %v", dir, err)
	}
	for _, f := range stages {
		args = append(args, "--config="+f)
	}
	cmd := r.s.Command(filepath.Join(dir, "kwok"), args...)
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if text := log.Bytes(); r.t.Failed() {
			r.t.Logf("the end of kwok's log:\n%s", text[max(0, len(text)-4000):])
		}
	})
}

// makeNodes returns when all are Ready.
func (r *run) makeNodes(n int) time.Duration {
	client, began := r.s.Client(r.t).CoreV1().Nodes(), time.Now()
	inParallel(r.t, n, func(i int) error {
		name := fmt.Sprintf("hollow-%04d", i)
		_, err := client.Create(r.t.Context(), &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"type": "kwok", corev1.LabelHostname: name}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "kwok", Effect: corev1.TaintEffectNoSchedule}}},
			Status:     corev1.NodeStatus{Capacity: capacity(), Allocatable: capacity()},
		}, metav1.CreateOptions{})
		return err
	})
	harness.Eventually(r.t, patience, "all nodes to be Ready", func() error {
		time.Sleep(time.Second)
		list, err := client.List(r.t.Context(), metav1.ListOptions{ResourceVersion: "0", LabelSelector: "type=kwok"})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			node := &list.Items[i]
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue && node.Spec.PodCIDR != "" && len(node.Spec.Taints) == 1 {
					ready++
				}
			}
		}
		if ready < n {
			return fmt.Errorf("%d are", ready)
		}
		return nil
	})
	return time.Since(began)
}

func capacity() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourceMemory: resource.MustParse("128Gi"), corev1.ResourcePods: resource.MustParse("110"),
	}
}

// makePods makes the Deployments at once and measures until all pods are Ready.
func (r *run) makePods(n int) []results.Sample {
	client := r.s.Client(r.t).AppsV1().Deployments(metav1.NamespaceDefault)
	scheduledBefore, began := r.scheduled(), time.Now()
	inParallel(r.t, deployments, func(i int) error {
		_, err := client.Create(r.t.Context(), hollow(fmt.Sprint("hollow-", i), int32(n/deployments)), metav1.CreateOptions{})
		return err
	})
	var schedulingTook, readyTook time.Duration
	harness.Eventually(r.t, patience, "all pods to be Ready", func() error {
		time.Sleep(time.Second)
		if schedulingTook == 0 {
			if done := r.scheduled() - scheduledBefore; done < n/deployments*deployments {
				return fmt.Errorf("%d pods are scheduled", done)
			}
			schedulingTook = time.Since(began)
		}
		list, err := client.List(r.t.Context(), metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return err
		}
		ready := 0
		for i := range list.Items {
			ready += int(list.Items[i].Status.ReadyReplicas)
		}
		if ready < n/deployments*deployments {
			return fmt.Errorf("%d pods are Ready", ready)
		}
		readyTook = time.Since(began)
		return nil
	})
	return []results.Sample{
		{Figure: results.PodsScheduled, Value: float64(n) / schedulingTook.Seconds()},
		{Figure: results.PodsReady, Value: float64(n) / readyTook.Seconds()},
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
					NodeSelector: map[string]string{"type": "kwok"},
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

var scheduledLine = regexp.MustCompile(`(?m)^scheduler_schedule_attempts_total\{.*result="scheduled".*\} (\S+)$`)

// scheduled is how many pods the scheduler has found a node for.
func (r *run) scheduled() int {
	text, err := r.s.Client(r.t).Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	m := scheduledLine.FindSubmatch(text)
	if m == nil {
		return 0 // none yet
	}
	n, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil {
		r.t.Fatal(err)
	}
	return int(n)
}

// inParallel calls f for 0 to n-1, sixteen at a time.
func inParallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, 16)
	for i := range n {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// startAsking sends requests one after the other until the returned function is called, which returns their 99th percentiles.
func startAsking(t *testing.T, client kubernetes.Interface) func() []results.Sample {
	t.Helper()
	api := client.CoreV1().ConfigMaps(metav1.NamespaceDefault)
	const name = "asked"
	if _, err := api.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	times := map[string][]float64{}
	ended := make(chan error, 1)
	timed := func(figure string, request func() error) error {
		began := time.Now()
		err := request()
		times[figure] = append(times[figure], float64(time.Since(began).Microseconds())/1e3)
		return err
	}
	go func() {
		var err error
		for i := 0; err == nil && ctx.Err() == nil; i++ {
			err = timed(results.GetP99, func() error { _, err := api.Get(context.Background(), name, metav1.GetOptions{}); return err })
			if err == nil {
				err = timed(results.UpdateP99, func() error {
					_, err := api.Update(context.Background(), &corev1.ConfigMap{
						ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"i": strconv.Itoa(i)},
					}, metav1.UpdateOptions{})
					return err
				})
			}
			if err == nil && i%20 == 0 {
				err = timed(results.ListP99, func() error {
					_, err := client.CoreV1().Pods(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{Limit: 500})
					return err
				})
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
		ended <- err
	}()
	return func() (samples []results.Sample) {
		t.Helper()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("a request failed: %v", err)
		}
		if err := api.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		for figure, v := range times {
			samples = append(samples, results.Sample{Figure: figure, Value: results.Percentile(v, 99)})
		}
		return samples
	}
}
