package compare

import (
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"kubelith.io/kubelith/bench/results"
)

// scaleCIDR has a pod CIDR for each of 1,000 nodes: the default range has 256.
const scaleCIDR = "172.16.0.0/12"

// TestScale measures each cluster with many nodes and pods that kwok plays.
func TestScale(t *testing.T) {
	store, _ := results.OpenRun(t, "bench-scale")
	nodes, pods := results.Number(t, "SCALE_NODES", 0), results.Number(t, "SCALE_PODS", 0)
	if nodes == 0 || pods == 0 {
		t.Skip("not a benchmark of many nodes: use make bench-scale")
	}
	set := load(t)
	set.clusterCIDR = scaleCIDR
	set.disable = "metrics-server" // hollow nodes have no metrics, and queries would only measure refused connections
	for _, name := range []string{results.Kubelith, results.Composition, results.Product} {
		if !set.wants(name) || store.Done("scale", 1, results.ScaleColumn(name, results.ScalePods)) {
			continue
		}
		t.Run(name, func(t *testing.T) { scale(t, store, newCluster(t, set, name), nodes, pods, set.idle) })
	}
}

// scale takes a cluster through the stages.
func scale(t *testing.T, store *results.Store, c *cluster, nodes, pods int, idle time.Duration) {
	began := c.start()
	client, err := kubernetes.NewForConfig(c.config(t))
	if err != nil {
		t.Fatal(err)
	}
	nodeReady(t, client, began)
	r := &run{t: t, c: c, store: store, client: client}
	time.Sleep(40 * time.Second) // Kubelith gives memory back half a minute after its start

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

// run is one cluster on its way through the stages.
type run struct {
	t      *testing.T
	c      *cluster
	store  *results.Store
	client kubernetes.Interface
	kwok   int // its process, once it runs
}

// use is what the cluster's processes use, all but kwok.
func (r *run) use() usage {
	all := r.c.usage(r.t)
	delete(all, r.kwok)
	return all
}

// stage measures what the cluster uses and how it answers while f goes on.
func (r *run) stage(name string, f func() []results.Sample) {
	r.t.Helper()
	before := r.scrape()
	ask := startAsking(r.t, r.client)
	peak := r.startPeak()
	used, kwokCPU, began := r.use(), r.kwokCPU(), time.Now()
	samples := f()
	took := time.Since(began).Seconds()
	now := r.use()
	cpu, memory := now.since(used, 100/took), now.memory()
	kwokCPU = r.kwokCPU() - kwokCPU
	samples = append(samples,
		results.Sample{Figure: results.ServerMemory, Value: memory.total, Detail: memory.String()},
		results.Sample{Figure: results.ServerPeak, Value: max(peak(), memory.total)})
	samples = append(samples, ask()...)
	samples = append(samples, before.until(r.scrape(), took)...)
	samples = append(samples,
		results.Sample{Figure: results.ServerCPU, Value: cpu.total, Detail: cpu.String()},
		results.Sample{Figure: results.KwokCPU, Value: kwokCPU / took * 100},
		results.Sample{Figure: results.NodesLost, Value: float64(r.notReady())})
	for _, x := range samples {
		r.t.Logf("%s: %s: %.2f %s", name, x.Figure, x.Value, x.Detail)
	}
	if err := r.store.Add("scale", 1, results.ScaleColumn(r.c.name, name), samples...); err != nil {
		r.t.Fatal(err)
	}
}

// startPeak samples the cluster's memory until the returned function is called, which returns the peak in MB.
func (r *run) startPeak() func() float64 {
	stop, ended := make(chan struct{}), make(chan struct{})
	var most float64
	go func() {
		defer close(ended)
		for {
			most = max(most, r.use().memory().total)
			select {
			case <-time.After(2 * time.Second):
			case <-stop:
				return
			}
		}
	}()
	return func() float64 { close(stop); <-ended; return most }
}

// until calls done every half a second until it is true, and for ten minutes at most. done returns the progress.
func (r *run) until(what string, done func() (string, bool)) time.Duration {
	r.t.Helper()
	const patience = 10 * time.Minute // for a stage that does not end
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
