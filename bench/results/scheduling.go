package results

import (
	"fmt"
	"io"
)

// The ways of bench/plugins to score nodes.
const (
	NoScorer        = "no scorer"
	ScorerPlugins   = "3 plugins"
	ScorerExtenders = "3 extenders"
)

// Figures of bench/plugins about scheduling.
const (
	PodTime       = "scheduling algorithm of one pod (µs)"
	PodsPerSecond = "pods created and scheduled (1/s)"
	OneScorer     = "one scorer, 420 of 1,000 nodes (µs)"
	ThreeScorers  = "three scorers, 420 of 1,000 nodes (µs)"
	UpdateBytes   = "sent of nodes to one plugin for one pod (bytes)"
	UpdateNodes   = "nodes sent to one plugin for one pod"
)

// SchedulingTable writes the markdown of docs/performance.md about scheduling plugins.
func SchedulingTable(w io.Writer, s *Store) {
	fmt.Fprintf(w, "| figure | %s | %s | %s |\n|---|---|---|---|\n", NoScorer, ScorerPlugins, ScorerExtenders)
	for _, f := range []string{OneScorer, ThreeScorers, PodTime, PodsPerSecond, UpdateBytes, UpdateNodes} {
		fmt.Fprintf(w, "| %s |", f)
		for _, way := range []string{NoScorer, ScorerPlugins, ScorerExtenders} {
			if v := s.Values(way, f); len(v) > 0 {
				fmt.Fprintf(w, " %s |", cell(v))
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
	plugin, extender := s.Values(ScorerPlugins, OneScorer), s.Values(ScorerExtenders, OneScorer)
	if len(plugin) == 0 || len(extender) == 0 {
		return
	}
	p, e := Median(plugin), Median(extender)
	fmt.Fprintf(w, "\nOne plugin takes %.0f µs for a pod (goal 300: %s), %.2f of what an extender takes (goal 0.1: %s). Medians of %d rounds, scheduling by a server of %d.\n",
		p, verdict(p <= 300, true), p/e, verdict(p <= 0.1*e, true), s.Rounds("scores", ScorerPlugins), s.Rounds("scheduling", ScorerPlugins))
}
