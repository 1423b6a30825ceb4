package lifecycle

import (
	"sync/atomic"
	"testing"
)

// TestGoroutines: End waits for those that run, and none begins after it.
func TestGoroutines(t *testing.T) {
	var g Goroutines
	var ended atomic.Bool
	proceed := make(chan struct{})
	g.Go(func() { <-proceed; ended.Store(true) })
	if !g.Begin() {
		t.Fatal("the second one may not begin")
	}
	g.Done()
	close(proceed)
	if g.End(); !ended.Load() {
		t.Error("End did not wait")
	}
	g.Go(func() { t.Error("one begins after End") })
	if g.Begin() {
		t.Error("one may begin after End")
	}
	g.End()
}
