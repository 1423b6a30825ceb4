package scale

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

func TestScale(t *testing.T) {
	store, _ := results.OpenRun(t, "bench-scale")
	nodes, pods, idle := results.Number(t, "SCALE_NODES", 1000), results.Number(t, "SCALE_PODS", 10000), time.Duration(results.Number(t, "IDLE_SECONDS", 30))*time.Second
	s := harness.Start(t, harness.Options{
		NoTestImage: true,
		Disable:     []string{"metrics-server"},
		Env:         []string{"KUBE_CACHE_MUTATION_DETECTOR=false"},
		// A pod CIDR for each node: the default range has 256.
		Args: []string{"--cluster-cidr=172.16.0.0/12"},
	})
	r := &run{t: t, s: s, store: store, client: client(t, s)}
	time.Sleep(40 * time.Second) // it gives memory back half a minute after its start

	r.stage(results.ScaleEmpty, func() []results.Sample { time.Sleep(idle); return nil })
	r.startKwok()
	r.stage(results.ScaleNodes, func() []results.Sample {
		took := r.makeNodes(nodes)
		time.Sleep(idle)
		return []results.Sample{{Figure: results.NodesReady, Value: took.Seconds()}}
	})
	r.stage(results.ScaleMaking, func() []results.Sample { return r.makePods(pods) })
	time.Sleep(idle)
	r.stage(results.ScalePods, func() []results.Sample { time.Sleep(idle); return nil })
}

// client sends as fast as it can, and no JSON.
func client(t *testing.T, s *harness.Server) kubernetes.Interface {
	t.Helper()
	cfg := s.RESTConfig(t)
	cfg.QPS = -1
	cfg.ContentType = runtime.ContentTypeProtobuf
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// run is one server on its way through the stages.
type run struct {
	t      *testing.T
	s      *harness.Server
	store  *results.Store
	client kubernetes.Interface
	kwok   int // its process, once it runs
}

// stage measures what the server uses and how it answers while f goes on.
func (r *run) stage(name string, f func() []results.Sample) {
	r.t.Helper()
	before := r.scrape()
	ask := startAsking(r.t, r.client)
	peak := startPeak(r.t, r.s.PID())
	cpu, kwokCPU, began := harness.CPUSeconds(r.t, r.s.PID()), r.kwokCPU(), time.Now()
	samples := f()
	took := time.Since(began).Seconds()
	cpu, kwokCPU = harness.CPUSeconds(r.t, r.s.PID())-cpu, r.kwokCPU()-kwokCPU
	memory := harness.AnonymousMB(r.t, r.s.PID())
	samples = append(samples,
		results.Sample{Figure: results.ServerMemory, Value: memory},
		results.Sample{Figure: results.ServerPeak, Value: max(peak(), memory)})
	samples = append(samples, ask()...)
	samples = append(samples, before.until(r.scrape(), took)...)
	samples = append(samples,
		results.Sample{Figure: results.ServerCPU, Value: cpu / took * 100},
		results.Sample{Figure: results.KwokCPU, Value: kwokCPU / took * 100},
		results.Sample{Figure: results.NodesLost, Value: float64(r.notReady())})
	for _, x := range samples {
		r.t.Logf("%s: %s: %.2f %s", name, x.Figure, x.Value, x.Detail)
	}
	if err := r.store.Add("scale", r.store.Rounds("scale", name)+1, name, samples...); err != nil {
		r.t.Fatal(err)
	}
}

// startPeak looks at a process's memory until the returned function is called, which returns the most there was, in MB.
func startPeak(t *testing.T, pid int) func() float64 {
	stop, ended := make(chan struct{}), make(chan struct{})
	var most float64
	go func() {
		defer close(ended) // also when the process has died, which fails the test
		for {
			most = max(most, harness.AnonymousMB(t, pid))
			select {
			case <-time.After(2 * time.Second):
			case <-stop:
				return
			}
		}
	}()
	return func() float64 { close(stop); <-ended; return most }
}

// until calls done every half a second until it is true, and for ten minutes at most. done says how far it is.
func (r *run) until(what string, done func() (string, bool)) time.Duration {
	r.t.Helper()
	for began := time.Now(); ; time.Sleep(500 * time.Millisecond) {
		text, is := done()
		took := time.Since(began)
		if is {
			return took
		}
		if took > patience {
			r.t.Errorf("%s: not within %s: %s", what, patience, text)
			return took
		}
	}
}

// patience is for a stage that does not end.
const patience = 10 * time.Minute

// inParallel calls f for 0 to n-1, sixteen at a time.
func inParallel(t *testing.T, n int, f func(i int) error) {
	t.Helper()
	type failure struct {
		i   int
		err error
	}
	indices, failures := make(chan int), make(chan failure)
	go func() {
		defer close(indices)
		for i := range n {
			indices <- i
		}
	}()
	const workers = 16
	for range workers {
		go func() {
			failed := failure{i: -1}
			for i := range indices {
				if err := f(i); err != nil && failed.err == nil {
					failed = failure{i, err}
				}
			}
			failures <- failed
		}()
	}
	for range workers {
		if failed := <-failures; failed.err != nil {
			t.Errorf("%d of %d: %v", failed.i, n, failed.err)
		}
	}
}
