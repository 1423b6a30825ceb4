package results

import (
	"fmt"
	"io"
)

// The ways of bench/plugins to review a request.
const (
	AsPlugin  = "admission plugin"
	AsWebhook = "HTTPS webhook"
)

// Metrics of bench/plugins about admission: those of a call, with so many at a time, and what a plugin costs without
// any.
const (
	Call1P50  = "call, median (µs)"
	Call1P99  = "call, p99 (µs)"
	Call1CPU  = "CPU of a call, both processes (µs)"
	Call16P50 = "call with 16 at a time, median (µs)"
	Call16P99 = "call with 16 at a time, p99 (µs)"
	Call16CPU = "CPU of a call with 16 at a time (µs)"

	IdlePlugin = "anonymous memory of the idle process (MB)"
)

// AdmissionTable writes the markdown of docs/performance.md about admission plugins.
func AdmissionTable(w io.Writer, s *Store) {
	fmt.Fprintf(w, "| metric | %s | %s | ratio | goal |\n|---|---|---|---|---|\n", AsPlugin, AsWebhook)
	for _, f := range []string{Call1P50, Call1P99, Call1CPU, Call16P50, Call16P99, Call16CPU, IdlePlugin} {
		plugin, webhook := s.Values(AsPlugin, f), s.Values(AsWebhook, f)
		if len(plugin) == 0 || len(webhook) == 0 {
			continue
		}
		goal := ""
		switch f {
		case Call1P50:
			goal = fmt.Sprintf("below 150 µs: %s; ratio 0.2: %s", verdict(Median(plugin) < 150, true), verdict(Median(plugin) <= 0.2*Median(webhook), true))
		case IdlePlugin:
			goal = "below 15: " + verdict(Median(plugin) < 15, true)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", f, cell(plugin), cell(webhook), ratio(plugin, webhook), goal)
	}
	fmt.Fprintf(w, "\nMedians of %d rounds.\n", s.Rounds("admission", AsPlugin))
}
