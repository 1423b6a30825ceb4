package workqueues

import (
	"bytes"
	"fmt"
	"runtime/pprof"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/component-base/metrics/legacyregistry"
)

// loops returns how many of client-go's loops are running.
func loops() int {
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 2)
	return bytes.Count(stacks.Bytes(), []byte("updateUnfinishedWorkLoop(")) // "in goroutine", of created by, has no bracket
}

// value returns a metric of the queue as a scrape has it, or -1.
func value(t *testing.T, from prometheus.Gatherer, metric, queue string) float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "name" && label.GetValue() == queue {
					switch {
					case m.GetGauge() != nil:
						return m.GetGauge().GetValue()
					case m.GetCounter() != nil:
						return m.GetCounter().GetValue()
					}
					return float64(m.GetHistogram().GetSampleCount())
				}
			}
		}
	}
	return -1
}

// install is called once, as in a server; of is upstream's provider.
var install = sync.OnceValues(func() (of workqueue.MetricsProvider, err error) {
	of = upstream
	return of, Install(legacyregistry.Registerer())
})

// TestInstall makes a queue as upstream's controllers do, and reads its metrics as a scrape of the process does.
func TestInstall(t *testing.T) {
	if upstream == nil {
		t.Fatal("client-go has no variable of this name any more, so that nothing would be installed")
	}
	original, err := install()
	if err != nil {
		t.Fatal(err)
	}
	if of := fmt.Sprintf("%T", original); of != "workqueue.prometheusMetricsProvider" {
		t.Fatalf("the variable of client-go has a %s: is it of another type?", of)
	}
	control := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: "control", MetricsProvider: original})
	defer control.ShutDown()
	name := fmt.Sprintf("installed-%d", time.Now().UnixNano())
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[string]{Name: name})
	defer queue.ShutDown()
	for _, item := range []string{"one", "two", "three"} {
		queue.Add(item)
	}
	first, _ := queue.Get()
	time.Sleep(200 * time.Millisecond)
	second, _ := queue.Get()
	time.Sleep(100 * time.Millisecond)
	read := func(metric string) float64 { return value(t, legacyregistry.DefaultGatherer, metric, name) }
	const unfinished, longest = "workqueue_unfinished_work_seconds", "workqueue_longest_running_processor_seconds"
	l, all := read(longest), read(unfinished) // all is read later
	if l < 0.3 || l > 60 || all < l+0.1 {
		t.Errorf("two items for 0.3 and 0.1 s: %v s in all, the longest %v s", all, l)
	}
	queue.Done(first)
	if l, all := read(longest), read(unfinished); l < 0.1 || l > 60 || all < l {
		t.Errorf("one item for 0.1 s: %v s in all, the longest %v s", all, l)
	}
	for deadline := time.Now().Add(time.Minute); loops() != 1; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d of client-go's loops run, not only that of the queue without our provider", loops())
		}
	}
	queue.Done(second)
	third, _ := queue.Get()
	queue.Done(third)
	if all := read(unfinished); all != 0 {
		t.Errorf("an idle queue has %v s of unfinished work", all)
	}
	for metric, want := range map[string]float64{
		"workqueue_adds_total": 3, "workqueue_depth": 0, "workqueue_work_duration_seconds": 3, "workqueue_queue_duration_seconds": 3,
	} {
		if got := read(metric); got != want {
			t.Errorf("%s is %v, want %v", metric, got, want)
		}
	}
}

// TestNearest ends items in another order than they started.
func TestNearest(t *testing.T) {
	start := time.Now()
	q := &queue{}
	for i := range 4 {
		q.start(start.Add(time.Duration(i) * time.Second))
	}
	q.end(start.Add(2*time.Second + 3*time.Millisecond))
	q.end(start.Add(-3 * time.Millisecond))
	if all, longest := q.working(start.Add(10 * time.Second)); all != 16*time.Second || longest != 9*time.Second {
		t.Errorf("items for 9 and 7 s: %v in all, the longest %v", all, longest)
	}
	q.end(start)
	q.end(start)
	q.end(start) // of an item that began before its queue was seen
	if all, longest := q.working(start); all != 0 || longest != 0 {
		t.Errorf("none: %v in all, the longest %v", all, longest)
	}
}

// TestOtherCaller has a function set the gauges that is not client-go's loop: it must come back.
func TestOtherCaller(t *testing.T) {
	loop{}.Set(1)
}
