package plugins

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/process"
	"kubelith.io/kubelith/plugins/scheduling"
)

// candidates are the nodes that upstream scores of 1,000 that all fit, and cycles the pods of a round.
const (
	candidates = 420
	cycles     = 500
)

// handle gives a framework plugin what ours need: the snapshot, and informers without any pods.
type handle struct {
	fwk.Handle
	snapshot *cache.Snapshot
}

func (h handle) SnapshotSharedLister() fwk.SharedLister { return h.snapshot }

func (h handle) SharedInformerFactory() informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(fake.NewClientset(), 0)
}

// TestScores measures what scoring takes by plugins and by extenders, without a cluster around it: upstream's own
// client of extenders, and our framework plugins with processes under the host. Between two pods one node changes.
func TestScores(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench-plugins")
	program := build(t, "scorer")
	var nodes []*corev1.Node
	for i := range hollowNodes {
		nodes = append(nodes, hollow(i))
	}
	snapshot := cache.NewSnapshot(nil, nodes)
	all, err := snapshot.NodeInfos().List()
	if err != nil {
		t.Fatal(err)
	}
	ways := map[string]func(*testing.T, *corev1.Pod, []fwk.NodeInfo, int){
		results.ScorerPlugins:   pluginScorers(t, program, snapshot),
		results.ScorerExtenders: extenderScorers(t, program),
	}
	for round := 1; round <= rounds; round++ {
		for _, way := range []string{results.ScorerPlugins, results.ScorerExtenders} {
			if store.Done("scores", round, way) {
				continue
			}
			var samples []results.Sample
			for figure, count := range map[string]int{results.OneScorer: 1, results.ThreeScorers: scorers} {
				took := measureScores(t, all, count, ways[way])
				t.Logf("round %d, %s, %d at once: median %v, mean %v, p99 %v", round, way, count, took[len(took)/2], mean(took), took[len(took)*99/100])
				samples = append(samples, results.Sample{Figure: figure, Value: float64(took[len(took)/2].Nanoseconds()) / 1000})
			}
			if err := store.Add("scores", round, way, samples...); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// measureScores are the times of the pods, in their order by length.
func measureScores(t *testing.T, all []fwk.NodeInfo, count int, score func(*testing.T, *corev1.Pod, []fwk.NodeInfo, int)) []time.Duration {
	t.Helper()
	var took []time.Duration
	for i := range cycles + 50 {
		pod := podFor("default", i)
		pod.Spec.NodeName = all[i%len(all)].Node().Name
		running, err := framework.NewPodInfo(pod)
		if err != nil {
			t.Fatal(err)
		}
		all[i%len(all)].AddPodInfo(running)
		first := i * 7 % (len(all) - candidates)
		start := time.Now()
		score(t, podFor("default", i), all[first:first+candidates], count)
		if i >= 50 { // warm
			took = append(took, time.Since(start))
		}
		all[i%len(all)].RemovePod(klog.Background(), pod)
	}
	slices.Sort(took)
	return took
}

func mean(all []time.Duration) time.Duration {
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	return sum / time.Duration(len(all))
}

// pluginScorers runs plugins under a host, as a server does.
func pluginScorers(t *testing.T, program string, snapshot *cache.Snapshot) func(*testing.T, *corev1.Pod, []fwk.NodeInfo, int) {
	t.Helper()
	var specs []host.Spec
	for i := range scorers {
		specs = append(specs, host.Spec{Spec: process.Spec{Name: fmt.Sprintf("scorer%d", i), Kind: plugins.Scheduling, Path: program, Source: "the benchmark"}})
	}
	log := logrus.New()
	log.SetLevel(logrus.WarnLevel)
	extension := scheduling.New(startPlugins(t, specs...), log)
	t.Cleanup(extension.Close)
	profiles := map[int][]fwk.Plugin{}
	for _, count := range []int{1, scorers} {
		registry := extension.Registry()
		for i := range count {
			p, err := registry[fmt.Sprintf("scorer%d", i)](t.Context(), nil, handle{snapshot: snapshot})
			if err != nil {
				t.Fatal(err)
			}
			profiles[count] = append(profiles[count], p)
		}
	}
	return func(t *testing.T, pod *corev1.Pod, nodes []fwk.NodeInfo, count int) {
		state := framework.NewCycleState()
		for _, p := range profiles[count] {
			if status := p.(fwk.PreScorePlugin).PreScore(t.Context(), state, pod, nodes); !status.IsSuccess() {
				t.Fatalf("%s: %v", p.Name(), status)
			}
		}
		for _, p := range profiles[count] {
			for _, n := range nodes {
				if _, status := p.(fwk.ScorePlugin).Score(t.Context(), state, pod, n); !status.IsSuccess() {
					t.Fatalf("%s: %v", p.Name(), status)
				}
			}
		}
	}
}

// extenderScorers runs extenders, and upstream's clients of them.
func extenderScorers(t *testing.T, program string) func(*testing.T, *corev1.Pod, []fwk.NodeInfo, int) {
	t.Helper()
	var all []fwk.Extender
	for i := range scorers {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+i)
		cmd := exec.Command(program, "-extender="+address, "-nodes="+strconv.Itoa(hollowNodes), strconv.Itoa(i))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
		waitExtender(t, "127.0.0.1", i)
		e, err := scheduler.NewHTTPExtender(&config.Extender{URLPrefix: "http://" + address, PrioritizeVerb: "prioritize", Weight: 1, NodeCacheCapable: true})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	return func(t *testing.T, pod *corev1.Pod, nodes []fwk.NodeInfo, count int) {
		var asked sync.WaitGroup
		for _, e := range all[:count] {
			asked.Go(func() {
				if scores, _, err := e.Prioritize(pod, nodes); err != nil || len(*scores) != len(nodes) {
					t.Errorf("%s: %v", e.Name(), err)
				}
			})
		}
		asked.Wait()
	}
}
