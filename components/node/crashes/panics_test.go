package crashes

import (
	"context"
	"fmt"
	"net/http"
	"runtime/pprof"
	"sync"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/lifecycle"
)

// TestPanics: a panic in a goroutine of a component that can be started again ends the goroutine and is reported, with
// the component's name; any other goes on.
func TestPanics(t *testing.T) {
	before := utilruntime.PanicHandlers
	defer func() { utilruntime.PanicHandlers = before }()
	utilruntime.PanicHandlers = nil
	var mu sync.Mutex
	var reported []string
	CatchPanics(func(component string, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, fmt.Sprintf("%s: %v", component, err))
		return component == "dns"
	})

	// run calls f in a grandchild of a component's goroutine, among others that do the same, and returns what it
	// panicked with.
	run := func(component string, value any) (again any) {
		var running sync.WaitGroup
		pprof.Do(t.Context(), pprof.Labels(lifecycle.Label, component), func(context.Context) {
			running.Go(func() {
				running.Go(func() {
					defer func() { again = recover() }()
					defer utilruntime.HandleCrash()
					panic(value)
				})
			})
		})
		running.Wait()
		return again
	}
	for _, tc := range []struct {
		component string
		value     any
		again     any
		reported  string
	}{
		{"dns", "ouch", nil, "[dns: panic: ouch]"},
		{"kubelet", "ouch", "ouch", "[kubelet: panic: ouch]"},
		{"dns", http.ErrAbortHandler, http.ErrAbortHandler, "[]"},
	} {
		reported = nil
		if again := run(tc.component, tc.value); again != tc.again || fmt.Sprint(reported) != tc.reported {
			t.Errorf("%s, %v: panicked again with %v, reported %v", tc.component, tc.value, again, reported)
		}
	}

	reported = nil
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() { run([]string{"dns", "kubelet"}[i%2], i%2) })
	}
	all.Wait()
	for _, text := range reported {
		if text != "dns: panic: 0" && text != "kubelet: panic: 1" {
			t.Errorf("a panic was taken for another component's: %s", text)
		}
	}
	if len(reported) != 20 {
		t.Errorf("%d of 20 were reported", len(reported))
	}
}
