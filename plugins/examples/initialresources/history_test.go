package main

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestPercentile(t *testing.T) {
	h := histogram{}
	for i := range int64(1000) {
		h.add(i+1, cpuScale)
	}
	for percent, want := range map[float64]int64{1: 10, 50: 500, 90: 900, 99: 990, 100: 1000} {
		if got := h.percentile(percent, cpuScale); got < want || float64(got) > float64(want)*growth+1 {
			t.Errorf("%v %%: %d, want %d and at most 5 %% more", percent, got, want)
		}
	}
	if len(h) > 150 {
		t.Errorf("%d buckets", len(h))
	}
	for value, want := range map[int64]int64{0: 1, -5: 1, 1: 1, 2: 3} {
		one := histogram{}
		one.add(value, cpuScale)
		if got := one.percentile(90, cpuScale); got != want {
			t.Errorf("%d: %d, want %d", value, got, want)
		}
	}
	large := histogram{}
	large.add(math.MaxInt64, memoryScale)
	if got := large.percentile(90, memoryScale); got < 1<<40 || len(large) != 1 || large.check() != nil {
		t.Errorf("the largest: %d", got)
	}
	outlier := histogram{}
	for range 99 {
		outlier.add(10, cpuScale)
	}
	outlier.add(100000, cpuScale)
	if got := outlier.percentile(90, cpuScale); got > 11 {
		t.Errorf("with one outlier of 100: %d", got)
	}
}

// TestDecay: old samples count less, and are forgotten.
func TestDecay(t *testing.T) {
	h := newHistory(week)
	app, now := image{"ns", "app:1"}, began
	all := func(image) bool { return true }
	for range 100 {
		h.add(app, 1000, 1<<30, now)
	}
	if w := h.sum(all, now.Add(week)).CPU.weight(); w < 49.9 || w > 50.1 {
		t.Errorf("after a week 100 samples count as %v", w)
	}
	now = now.Add(3 * week)
	for range 200 {
		h.add(app, 10, 1<<20, now)
	}
	if got := h.sum(all, now).CPU.percentile(90, cpuScale); got > 11 {
		t.Errorf("three weeks later the old usage decides: %d", got)
	}
	h.add(app, 10, 1<<20, now.Add(-week)) // late
	if at := h.images[app].At; !at.Equal(now) {
		t.Errorf("the time went back to %s", at)
	}
	if w := h.sum(all, now.Add(forgotten+time.Second)).CPU.weight(); w != 0 {
		t.Errorf("what has not run for a month has the weight %v", w)
	}
	for range 200 {
		now = now.Add(week)
		h.add(app, 20, 1<<21, now)
	}
	if n := len(h.images[app].CPU); n != 1 {
		t.Errorf("%d buckets after 200 weeks", n)
	}
}

// TestBounded: the image that has not run for longest gives way.
func TestBounded(t *testing.T) {
	h := newHistory(week)
	now := began
	name := func(i int) image { return image{"ns", fmt.Sprint("app:", i)} }
	for i := range maxImages + 10 {
		now = now.Add(time.Second)
		h.add(name(i), 1, 1, now)
		h.add(name(0), 1, 1, now)
	}
	if images, _ := h.size(); images != maxImages || h.images[name(0)] == nil || h.images[name(10)] != nil || h.images[name(11)] == nil {
		t.Errorf("%d images", images)
	}
	h.add(name(-1), 1, 1, now.Add(2*forgotten))
	if images, _ := h.size(); images != 1 {
		t.Errorf("%d images, of which one has run within a month", images)
	}
}

func TestSaved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.json")
	h := newHistory(week)
	if err := h.load(path); err != nil {
		t.Errorf("no file: %v", err)
	}
	if err := h.save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("nothing is saved")
	}
	for i := range 50 {
		h.add(image{"ns", fmt.Sprint("app:", i%2)}, int64(i), int64(i)<<20, began.Add(time.Duration(i)*time.Hour))
	}
	if err := h.save(path); err != nil {
		t.Fatal(err)
	}
	again := newHistory(week)
	if err := again.load(path); err != nil {
		t.Fatal(err)
	}
	for i, u := range h.images {
		v := again.images[i]
		if v == nil || !v.At.Equal(u.At) || fmt.Sprint(v.CPU) != fmt.Sprint(u.CPU) || fmt.Sprint(v.Memory) != fmt.Sprint(u.Memory) {
			t.Errorf("%v: %v, want %v", i, v, u)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := h.save(path); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("what is saved already is written again")
	}
	h.add(image{"ns", "app:1"}, 1, 1, began)
	if err := h.save(filepath.Join(path, "none")); err == nil || !h.unsaved {
		t.Errorf("a failed save: %v", err)
	}
}

func TestBrokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "usage.json")
	one := func(cpu string) string {
		return `{"version":1,"images":[{"namespace":"a","name":"b","cpu":` + cpu + `,"memory":{"1":1},"at":"2030-01-01T00:00:00Z"}]}`
	}
	for text, good := range map[string]bool{
		one(`{"1":1}`): true, one(`{"-1":1}`): false, one(`{"300":1}`): false, one(`{"1":-1}`): false, one(`{"1":1e300}`): false, one(`null`): false, one(`{"x":1}`): false,
		``: false, `{}`: false, `{"version":2}`: false, `{"version":1}`: true,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h := newHistory(week)
		if err := h.load(path); (err == nil) != good || !good && len(h.images) > 0 {
			t.Errorf("%s: %v", text, err)
		}
	}
}
