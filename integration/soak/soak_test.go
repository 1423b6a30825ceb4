// Package soak does at random, for as long as asked, what happens to a server in years: pods come and go, webhooks
// fail, the disk fills up, processes are killed. Afterwards everything that was acknowledged is there, and nothing is
// left over. `make soak` runs it.
package soak

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"kubelith.io/kubelith/integration/harness"
)

func TestMain(m *testing.M) { harness.Main(m) }

// TestSoak runs for KUBELITH_SOAK (a duration) with the seed KUBELITH_SOAK_SEED, or one that it prints.
func TestSoak(t *testing.T) {
	duration, err := time.ParseDuration(os.Getenv("KUBELITH_SOAK"))
	if err != nil {
		t.Skip("not asked for: make soak [SOAK=10m] [SEED=1]")
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("KUBELITH_SOAK_SEED"); text != "" {
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("KUBELITH_SOAK_SEED: %v", err)
		}
	}
	t.Logf("seed %d for %s: make soak SOAK=%s SEED=%d does the same again", seed, duration, duration, seed)
	random := rand.New(rand.NewPCG(seed, 0))

	faults := []fault{createPod, createPod, createPodWithVolume, deletePod, deletePod, deletePod, failingWebhook, killPlugin, restartPlugin, kill, kill, killUnstaging, restart, fillDisk}
	once := []fault{createPod, createPodWithVolume, failingWebhook, killPlugin, restartPlugin, kill, killUnstaging, restart, fillDisk}
	var s *harness.Server
	if os.Getenv("KUBELITH_SOAK_CLOCK") == "yes" {
		clock := newWallClock(t)
		s = harness.Start(t, harness.Options{Prepare: harness.SmallDisk(3)})
		clock.later = day
		clock.set(t, 0)
		s.WaitReady(t)
		faults = append(faults, clock.jump, clock.jump, clock.jump)
		once = append(once, clock.fast, clock.slow)
	} else {
		t.Log("the clock is left alone, as it is the whole machine's: on a separate machine, make soak CLOCK=yes sets it too")
		s = harness.Start(t, harness.Options{Prepare: harness.SmallDisk(3)})
	}
	w := startWriter(t, s)
	for _, f := range once {
		t.Logf("first: %s", f(t, s, random)) // what a first time creates for good is in the first measurement
	}
	s.Kubectl(t, "-n", namespace, "wait", "--for=condition=Ready", "pods", "-l", "soak", fmt.Sprintf("--timeout=%v", harness.Patience(110*time.Second)))
	removePods(t, s)
	s.Restart(t)
	before := settled(t, s)

	done := map[string]int{}
	for end := time.Now().Add(duration); time.Now().Before(end); {
		i := random.IntN(len(faults))
		name := faults[i](t, s, random)
		done[name]++
		t.Logf("%s: %s", time.Until(end).Round(time.Second), name)
		time.Sleep(time.Duration(random.IntN(2000)) * time.Millisecond)
	}
	t.Logf("done: %v", done)

	w.stop(t)
	removePods(t, s)
	aged := settledTo(t, s, before)
	s.Restart(t)
	after := settledTo(t, s, before)
	t.Logf("before: %v; at the end: %v; after a restart: %v", before, aged, after)
	if lost := w.lost(t, s); len(lost) > 0 {
		t.Errorf("acknowledged and lost: %q", lost)
	}
	for _, end := range []struct {
		when string
		measurement
	}{{"at the end", aged}, {"after a restart", after}} {
		for _, problem := range end.exceeds(before) {
			t.Errorf("%s there are more %s (new: %q)", end.when, problem, end.more(before))
		}
	}
}

// exceeds lists what is more than before. What the kernel holds has to be the same; goroutines and memory of a process
// vary.
func (m measurement) exceeds(before measurement) []string {
	var out []string
	check := func(what string, now, limit float64) {
		if now > limit {
			out = append(out, fmt.Sprintf("%s: %.0f, at most %.0f", what, now, limit))
		}
	}
	check("mounts", float64(m.mounts), float64(before.mounts))
	check("network namespaces", float64(m.namespaces), float64(before.namespaces))
	check("rules of the packet filter", float64(m.rules), float64(before.rules))
	check("links", float64(m.links), float64(before.links))
	check("processes of containers", float64(m.containers), float64(before.containers))
	check("goroutines", m.goroutines, before.goroutines*1.1+50)
	check("MB of anonymous memory", m.memory, before.memory*1.5+50)
	return out
}
