package scheduling

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	st "k8s.io/kubernetes/pkg/scheduler/testing"

	"kubelith.io/kubelith/plugins/sdk"
)

// TestTogether: the plugins of a profile are called at the same time, each once, and each answer is its own.
func TestTogether(t *testing.T) {
	const count = 3
	var mu sync.Mutex
	waiting, together := 0, make(chan struct{})
	arrive := func() {
		mu.Lock()
		if waiting++; waiting%count == 0 {
			close(together)
			together = make(chan struct{})
			mu.Unlock()
			return
		}
		wait := together
		mu.Unlock()
		select {
		case <-wait:
		case <-time.After(10 * time.Second):
			t.Error("a plugin waits for the others to be asked")
		}
	}
	var processes []*process
	for i := range count {
		p := newProcess(fmt.Sprint("p", i))
		p.start(t, sdk.Scheduling{
			Filter: func(_ context.Context, _ *sdk.Pod, node *sdk.Node) string {
				if node.GetName() == fmt.Sprint("not-", i) {
					return fmt.Sprint("refused by ", i)
				}
				return ""
			},
			ScoreAll: func(_ context.Context, _ *sdk.Pod, nodes []*sdk.Node) ([]int, error) {
				arrive()
				out := make([]int, len(nodes))
				for n, node := range nodes {
					if node.GetLabels()["zone"] == fmt.Sprint(i) {
						out[n] = 100
					}
				}
				return out, nil
			},
			Weight: 100 + 50*i, // the last one wins
		})
		processes = append(processes, p)
	}
	r := newRig(t, processes...)
	for i := range count {
		r.nodes(node(fmt.Sprint("not-", i), "x"), node(fmt.Sprint("zone-", i), fmt.Sprint(i)))
	}
	for range 3 {
		got, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj())
		if err != nil || got != "zone-2" {
			t.Errorf("node %q, %v; want zone-2", got, err)
		}
		for _, p := range processes {
			if asked, want := requests(p), "Filter, Score 3"; asked != want {
				t.Errorf("%s was asked %q, want %q", p.Name(), asked, want)
			}
		}
	}
	// One that fails does not affect the others.
	processes[2].breakWith(func(string, any) (any, error) { return nil, status.Error(codes.Unavailable, "crashed") })
	waiting = 1 // for the one that does not come
	got, _, err := r.schedule(st.MakePod().Name("p").UID("p").Obj())
	if err != nil || got != "zone-1" {
		t.Errorf("node %q, %v; want zone-1", got, err)
	}
}
