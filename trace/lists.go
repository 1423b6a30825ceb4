package trace

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/trace/record"
)

// SlowestStarts returns the n slowest starts of pods that became ready, the slowest first.
func SlowestStarts(from Source, all []record.History, may func(record.Ref) bool, now int64, n int) []Summary {
	var starts []Summary
	for _, t := range podStarts(from, all, may, now) {
		starts = append(starts, summary(t, "pod start"))
	}
	return slowest(starts, n)
}

// podStarts returns the timelines of the pods whose start is in the record.
func podStarts(from Source, all []record.History, may func(record.Ref) bool, now int64) []*Timeline {
	var timelines []*Timeline
	for _, h := range all {
		if h.Object.Resource != pods || h.Object.UID == "" || !may(h.Object.Ref) {
			continue
		}
		// A pod that is being deleted, or gone, has started before.
		end := slices.IndexFunc(h.Records, func(r record.Record) bool { return setsOff(&r) && verbOf(&r) == "delete" })
		if end >= 0 {
			h.Records = h.Records[:end]
		}
		if t := Assemble(from, h, may, now); t.Verb == "create" && t.Settled && t.Outcome == "ready" {
			timelines = append(timelines, t)
		}
	}
	return timelines
}

func summary(t *Timeline, what string) Summary {
	s := Summary{Object: t.Object, What: what, By: strings.TrimPrefix(t.SetOff, t.Verb+" by "), Begin: t.Begin, Took: t.End.Sub(t.Begin), Settled: t.Settled}
	if len(t.Stages) > 0 {
		s.Slowest = t.Stages[0]
	}
	return s
}

func slowest(all []Summary, n int) []Summary {
	slices.SortStableFunc(all, func(a, b Summary) int { return cmp.Compare(b.Took, a.Took) })
	return all[:min(n, len(all))]
}

// SlowestRequests returns the n slowest requests that wrote, the slowest first.
func SlowestRequests(all []record.History, may func(record.Ref) bool, n int) []Summary {
	var requests []Summary
	for _, h := range all {
		if !may(h.Object.Ref) {
			continue
		}
		for i := range h.Records {
			r := &h.Records[i]
			if r.Stage != record.Request {
				continue
			}
			s := Summary{Object: h.Object.Ref, What: r.Name, By: by(r), Begin: at(r.Start), Took: r.Duration, Settled: true}
			for _, step := range r.Steps {
				if step.Duration > s.Slowest.Took {
					s.Slowest = Total{
						Stage: record.Stage(strings.TrimSpace(step.Name + " " + step.Detail)),
						Took:  step.Duration,
						Share: float64(step.Duration) / float64(max(r.Duration, 1)),
					}
				}
			}
			requests = append(requests, s)
		}
	}
	return slowest(requests, n)
}

// Recent returns summaries of the n newest timelines of objects that users set off, the newest first: of objects that
// nothing else owns, and that own pods or are pods.
func Recent(from Source, all []record.History, may func(record.Ref) bool, now int64, n int) []Summary {
	var recent []Summary
	for _, h := range slices.Backward(all) { // the newest record last
		if len(recent) == n {
			break
		}
		if len(h.Object.Owners) > 0 || !startsPods(h.Object.Resource) || !may(h.Object.Ref) {
			continue
		}
		t := Assemble(from, h, may, now)
		if t.SetOff == "" {
			continue
		}
		s := summary(t, t.Verb)
		if !t.Settled {
			s.What += ": " + t.Outcome
		}
		recent = append(recent, s)
	}
	slices.SortStableFunc(recent, func(a, b Summary) int { return b.Begin.Compare(a.Begin) })
	return recent
}

func startsPods(resource string) bool {
	switch resource {
	case pods, claims, "deployments.apps", "statefulsets.apps", "daemonsets.apps", "replicasets.apps", "jobs.batch", "cronjobs.batch":
		return true
	}
	return false
}

// Stats returns percentiles of the stages of pods that became ready, in the order of a start.
func Stats(from Source, all []record.History, may func(record.Ref) bool, now int64) []Percentiles {
	took, order := map[record.Stage][]time.Duration{}, map[record.Stage]time.Duration{}
	for _, t := range podStarts(from, all, may, now) {
		for i := range t.Spans {
			s := &t.Spans[i]
			if s.Parent != 0 && s.Stage != record.CNI || s.Object != t.Object || s.Moment {
				continue
			}
			took[s.Stage] = append(took[s.Stage], s.Duration())
			order[s.Stage] += s.Begin.Sub(t.Begin)
		}
		took["total"] = append(took["total"], t.End.Sub(t.Begin))
	}
	var stats []Percentiles
	for stage, all := range took {
		slices.Sort(all)
		rank := func(p float64) time.Duration { return all[min(len(all)-1, int(p*float64(len(all))))] }
		stats = append(stats, Percentiles{Stage: stage, Count: len(all), P50: rank(0.5), P90: rank(0.9), P99: rank(0.99), Max: all[len(all)-1]})
	}
	place := func(p Percentiles) time.Duration {
		if p.Stage == "total" {
			return 1<<63 - 1
		}
		return order[p.Stage] / time.Duration(p.Count)
	}
	slices.SortFunc(stats, func(a, b Percentiles) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Stage, b.Stage))
	})
	return stats
}
