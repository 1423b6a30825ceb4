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

// Metrics of bench/plugins about scheduling.
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
	writeRows(w, s, []string{NoScorer, ScorerPlugins, ScorerExtenders}, []string{OneScorer, ThreeScorers, PodTime, PodsPerSecond, UpdateBytes, UpdateNodes})
	plugin, extender := s.Values(ScorerPlugins, OneScorer), s.Values(ScorerExtenders, OneScorer)
	if len(plugin) == 0 || len(extender) == 0 {
		return
	}
	p, e := Median(plugin), Median(extender)
	fmt.Fprintf(w, "\nOne plugin takes %.0f µs for a pod (goal 300: %s), %.2f of what an extender takes (goal 0.1: %s). Medians of %d rounds, scheduling by a server of %d.\n",
		p, verdict(p <= 300, true), p/e, verdict(p <= 0.1*e, true), s.Rounds("scores", ScorerPlugins), s.Rounds("scheduling", ScorerPlugins))
}
