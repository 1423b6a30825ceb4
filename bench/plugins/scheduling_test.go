package plugins

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

// How much is scheduled where, and by how many scorers.
const (
	hollowNodes = 1000
	warmPods    = 50
	pods        = 2000
	scorers     = 3
)

// scorer is the executable of bench/plugins/scorer, and firstPort that of the first extender, inside the sandbox.
const (
	scorer    = "/opt/kubelith/scorer"
	pluginDir = harness.DataDir + "/plugins/scheduling"
	firstPort = 18081
)

// TestScheduling measures each way ROUNDS times, one after the other, and stores the samples in the file BENCH_RESULTS.
//
// A server with 1,000 Node objects without kubelets schedules 2,000 pods of one template, with no scheduling plugin,
// with three that score, and with three HTTP extenders of the same formula on the same host (nodeCacheCapable: they are
// sent names only). The time of a pod is that of upstream's scheduling algorithm
// (scheduler_scheduling_algorithm_duration_seconds), from the first filter to the choice of a node. The overhead of one
// plugin is a third of what three add to it. The default profile is as it comes: with upstream's default constraints of
// spreading it does not batch pods, so that all three schedule pod by pod.
func TestScheduling(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-plugins")
	program := build(t, "scorer")
	for round := 1; round <= rounds; round++ {
		for _, way := range []string{results.NoScorer, results.ScorerPlugins, results.ScorerExtenders} {
			if store.Done("scheduling", round, way) {
				continue
			}
			t.Run(fmt.Sprintf("%d/%s", round, way), func(t *testing.T) {
				samples := schedule(t, way, program)
				for _, s := range samples {
					t.Logf("round %d, %s, %s: %.4g", round, way, s.Figure, s.Value)
				}
				if err := store.Add("scheduling", round, way, samples...); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}

// schedule starts a server, and lets it schedule the pods.
func schedule(t *testing.T, way, program string) []results.Sample {
	s := harness.Start(t, options(way, program))
	s.WaitAPI(t)
	config := s.RESTConfig(t)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ns := s.Namespace(t)
	inParallel(t, hollowNodes, func(ctx context.Context, i int) error {
		_, err := client.CoreV1().Nodes().Create(ctx, hollow(i), metav1.CreateOptions{})
		return err
	})
	if way == results.ScorerExtenders {
		startExtenders(t, s)
	}
	create := func(from, count int) {
		inParallel(t, count, func(ctx context.Context, i int) error {
			_, err := client.CoreV1().Pods(ns).Create(ctx, podFor(ns, from+i), metav1.CreateOptions{})
			return err
		})
	}
	scheduled := func(count float64) figures {
		for {
			if f := read(t, s); f["scheduler_scheduling_algorithm_duration_seconds_count"] >= count {
				return f
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	create(0, warmPods)
	before := scheduled(warmPods)
	start := time.Now()
	create(warmPods, pods)
	after := scheduled(before["scheduler_scheduling_algorithm_duration_seconds_count"] + pods)
	took := time.Since(start)
	requireScored(t, way, s)
	delta := func(name string) float64 { return after[name] - before[name] }
	const algorithm = "scheduler_scheduling_algorithm_duration_seconds"
	out := []results.Sample{
		{Figure: results.PodTime, Value: delta(algorithm+"_sum") / delta(algorithm+"_count") * 1e6},
		{Figure: results.PodsPerSecond, Value: pods / took.Seconds()},
	}
	if way == results.ScorerPlugins {
		out = append(out,
			results.Sample{Figure: results.UpdateBytes, Value: delta("kubelith_scheduling_plugin_update_bytes_total") / scorers / pods},
			results.Sample{Figure: results.UpdateNodes, Value: delta("kubelith_scheduling_plugin_update_nodes_total") / scorers / pods})
	}
	return out
}

// options of a control plane alone: without kubelets other components had only trouble with the nodes.
func options(way, program string) harness.Options {
	o := harness.Options{
		NoWait: true, NoTestImage: true,
		Disable: []string{"containerd", "dns", "kubelet", "local-storage", "metrics-server", "network", "proxy", "servicelb"},
		Args:    []string{"--controller-manager-arg=controllers=*,-node-lifecycle-controller,-node-ipam-controller,-pod-garbage-collector-controller"},
	}
	content := must(os.ReadFile(program))
	files := map[string][]byte{scorer: content}
	switch way {
	case results.ScorerPlugins:
		for i := range scorers {
			files[fmt.Sprintf("%s/scorer%d", pluginDir, i)] = content
		}
	case results.ScorerExtenders:
		const file = "/etc/kubelith/scheduler.yaml"
		text := "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\nextenders:\n"
		for i := range scorers {
			text += fmt.Sprintf("- {urlPrefix: \"http://127.0.0.1:%d\", prioritizeVerb: prioritize, weight: 1, nodeCacheCapable: true}\n", firstPort+i)
		}
		files[file] = []byte(text)
		o.Args = append(o.Args, "--scheduler-arg=config="+file)
	}
	o.Prepare = func(s *harness.Server) error {
		for path, content := range files {
			if err := os.MkdirAll(filepath.Dir(s.Path(path)), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(s.Path(path), content, 0o755); err != nil {
				return err
			}
		}
		return nil
	}
	return o
}

func must(content []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return content
}

// startExtenders runs them until the test ends, and waits until each has the nodes.
func startExtenders(t *testing.T, s *harness.Server) {
	t.Helper()
	for i := range scorers {
		address := fmt.Sprintf(":%d", firstPort+i)
		cmd := s.Command(scorer, "-extender="+address, "-nodes="+strconv.Itoa(hollowNodes), strconv.Itoa(i))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		waitExtender(t, s.NodeIP, i)
	}
}

// requireScored fails unless the scorers decided where pods went: a benchmark of calls that fail would be a fast one.
func requireScored(t *testing.T, way string, s *harness.Server) {
	t.Helper()
	if lines := strings.Count(s.Logs(), "The plugin does not score"); lines > 0 {
		t.Errorf("calls of plugins failed: %d lines say so", lines)
	}
	for i := range scorers {
		if way != results.ScorerExtenders {
			break
		}
		if n, err := served(s.NodeIP, i); err != nil || n < pods {
			t.Errorf("extender %d was asked %d times for %d pods, %v", i, n, pods, err)
		}
	}
	harness.Eventually(t, time.Minute, "bindings to be written", func() error { // the scheduler goes on to the next pod before
		list, err := s.Client(t).CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "bench=scheduling"})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if node := list.Items[i].Spec.NodeName; !strings.HasPrefix(node, "hollow-") {
				return fmt.Errorf("pod %s is on node %q", list.Items[i].Name, node)
			}
		}
		return nil
	})
}

// waitExtender waits until an extender has the nodes.
func waitExtender(t *testing.T, host string, i int) {
	t.Helper()
	harness.Eventually(t, time.Minute, "an extender to answer", func() error {
		_, err := served(host, i)
		return err
	})
}

// served is how often an extender has been called.
func served(host string, i int) (count int, err error) {
	response, err := http.Get(fmt.Sprintf("http://%s:%d/served", host, firstPort+i))
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	_, err = fmt.Fscan(response.Body, &count)
	return count, err
}

// hollow is a Node object without a machine.
func hollow(i int) *corev1.Node {
	name := fmt.Sprintf("hollow-%d", i)
	list := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("32"), corev1.ResourcePods: resource.MustParse("110"),
		corev1.ResourceMemory: *resource.NewQuantity(int64(32+i%101)<<30, resource.BinarySI),
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"hollow": "", corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Capacity: list, Allocatable: list,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Hollow"}}},
	}
}

// podFor tolerates the taint that the apiserver sets on new nodes, which nothing removes.
func podFor(ns string, i int) *corev1.Pod {
	p := harness.Pod(ns, fmt.Sprintf("p%d", i), "sleep", "1000")
	p.Labels = map[string]string{"bench": "scheduling"}
	p.Spec.NodeSelector = map[string]string{"hollow": ""}
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}
	return p
}

// inParallel runs f for 0 to count-1, eight at a time.
func inParallel(t *testing.T, count int, f func(ctx context.Context, i int) error) {
	t.Helper()
	work := make(chan int)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for i := range work {
				if err := f(t.Context(), i); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range count {
		work <- i
	}
	close(work)
	workers.Wait()
	if t.Failed() {
		t.FailNow()
	}
}

// figures are sums of the server's metrics by name, over all labels.
type figures map[string]float64

func read(t *testing.T, s *harness.Server) figures {
	t.Helper()
	raw, err := s.Client(t).CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := figures{}
	lines := bufio.NewScanner(strings.NewReader(string(raw)))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "scheduler_") && !strings.HasPrefix(line, "kubelith_") {
			continue
		}
		series, value, _ := strings.Cut(line, " ")
		if i := strings.LastIndexByte(line, '}'); i >= 0 {
			series, value = line[:i+1], strings.TrimSpace(line[i+1:])
		}
		number, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		name, _, _ := strings.Cut(series, "{")
		out[name] += number
	}
	return out
}
