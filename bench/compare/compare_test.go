package compare

import (
	"fmt"
	"testing"

	"kubelith.io/kubelith/bench/results"
)

// TestCompare is the benchmark. It goes on where an earlier run with the same executable stopped.
func TestCompare(t *testing.T) {
	store, rounds := results.OpenRun(t, "bench")
	set := load(t)
	for round := 1; round <= rounds; round++ {
		if !interleaved(t, set, store, "pods", round, []string{results.Kubelith, results.Composition, results.Product, results.Floor}) {
			return
		}
	}
	for round := 1; round <= set.idleRounds; round++ {
		if !interleaved(t, set, store, "idle", round, []string{results.Kubelith, results.Composition, results.Product}) {
			return
		}
	}
}

// interleaved runs one round of every cluster. Each round begins with another one, so that what
// changes on the machine with time falls on all alike. A failed cluster ends the benchmark.
func interleaved(t *testing.T, set settings, store *results.Store, kind string, round int, clusters []string) bool {
	for i := range clusters {
		cluster := clusters[(i+round-1)%len(clusters)]
		if !set.wants(cluster) || store.Done(kind, round, cluster) {
			continue
		}
		ok := t.Run(fmt.Sprintf("%s%d/%s", kind, round, cluster), func(t *testing.T) {
			var samples []results.Sample
			switch {
			case cluster == results.Floor:
				samples = measureFloor(t, set)
			case kind == "idle":
				samples = idleRound(t, set, newCluster(t, set, cluster))
			default:
				samples = podsRound(t, newCluster(t, set, cluster))
			}
			for _, s := range samples {
				t.Logf("%s: %.3f %s", s.Figure, s.Value, s.Detail)
			}
			if err := store.Add(kind, round, cluster, samples...); err != nil {
				t.Fatal(err)
			}
		})
		if !ok {
			return false
		}
	}
	return true
}
