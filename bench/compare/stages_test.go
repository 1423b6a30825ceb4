package compare

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
)

// Histograms of the kubelet that say where the time of a pod goes.
const (
	runtimeCalls = "kubelet_runtime_operations_duration_seconds"
	volumeWork   = "storage_operation_duration_seconds"
	stageTimes   = "kubelith_stage_duration_seconds" // of Kubelith's recorder
	wholePods    = "created to Ready"
	theRest      = "the rest: API, scheduler, and waits of the kubelet"
)

// TestStages prints where the time of single pods goes, one after the other, in each cluster: milliseconds per pod.
func TestStages(t *testing.T) {
	pods := results.Number(t, "BENCH_PODS", 0)
	if pods == 0 {
		t.Skip("not a benchmark run: use make bench-pods")
	}
	set := load(t)
	table := map[string]map[string]float64{}
	var ours map[string]float64
	clusters := []string{results.Kubelith, results.Composition, results.Product}
	for _, name := range clusters {
		if set.wants(name) {
			t.Run(name, func(t *testing.T) { table[name], ours = stages(t, newCluster(t, set, name), pods, ours) })
		}
	}
	if t.Failed() {
		return
	}
	fmt.Printf("\n| ms per pod, means of %d | %s |\n|---%s|\n", pods, strings.Join(clusters, " | "), strings.Repeat("|---", len(clusters)))
	for _, row := range []string{wholePods, "volumes", "RunPodSandbox", "CreateContainer", "StartContainer", theRest} {
		fmt.Printf("| %s |", row)
		for _, name := range clusters {
			fmt.Printf(" %.0f |", table[name][row])
		}
		fmt.Println()
	}
	fmt.Print("\n| stage of `kubelith trace`, ms per pod | Kubelith |\n|---|---|\n")
	for _, stage := range slices.Sorted(maps.Keys(ours)) {
		fmt.Printf("| %s | %.1f |\n", stage, ours[stage])
	}
}

// stages runs pods one after the other. recorded is what Kubelith's recorder has of them; another cluster returns it as
// it was.
func stages(t *testing.T, c *cluster, pods int, recorded map[string]float64) (row, recordedNow map[string]float64) {
	client, _, _, _ := coldStart(t, c)
	c.verify(t, client)
	onePod(t, client, "warm-up")
	time.Sleep(settle)
	before := sums(t, client)
	total := 0.0
	for i := range pods {
		total += onePod(t, client, fmt.Sprintf("stages-%d", i))
	}
	time.Sleep(settle)
	row, recordedNow = map[string]float64{wholePods: total * 1e3 / float64(pods)}, recorded
	if c.name == results.Kubelith {
		recordedNow = map[string]float64{}
	}
	named := map[string]string{
		runtimeCalls + " run_podsandbox": "RunPodSandbox", runtimeCalls + " create_container": "CreateContainer",
		runtimeCalls + " start_container": "StartContainer", volumeWork + " volume_mount": "volumes",
	}
	row[theRest] = row[wholePods]
	for key, after := range sums(t, client) {
		ms := (after - before[key]) * 1e3 / float64(pods)
		if name := named[key]; name != "" {
			row[name] = ms
			row[theRest] -= ms
		}
		if stage, ok := strings.CutPrefix(key, stageTimes+" "); ok {
			recordedNow[stage] = ms
		}
	}
	return row, recordedNow
}

// onePod creates a pod and returns the seconds until it is Ready.
func onePod(t *testing.T, client kubernetes.Interface, name string) float64 {
	t.Helper()
	seen := concurrently(func() time.Time { return podsReady(t, client, name, 1) })
	time.Sleep(200 * time.Millisecond) // the watch is open
	began := time.Now()
	if _, err := client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), helloPod(name), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	took := seen.since(began)
	time.Sleep(time.Second)
	return took
}

// sums returns the sums of the histograms above, in seconds, by name and label, as the kubelet has them.
func sums(t *testing.T, client kubernetes.Interface) map[string]float64 {
	t.Helper()
	nodes, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil || len(nodes.Items) != 1 {
		t.Fatalf("want one node: %v, %v", nodes, err)
	}
	text, err := client.Discovery().RESTClient().Get().AbsPath("/api/v1/nodes/" + nodes.Items[0].Name + "/proxy/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for name, label := range map[string]string{runtimeCalls: "operation_type", volumeWork: "operation_name", stageTimes: "stage"} {
		for _, m := range families[name].GetMetric() {
			i := slices.IndexFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName() == label })
			if i >= 0 {
				out[name+" "+m.GetLabel()[i].GetValue()] += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return out
}
