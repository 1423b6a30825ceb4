package render

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"kubelith.io/kubelith/base/oneline"
	"kubelith.io/kubelith/trace"
)

// Summaries writes timelines as a table.
func Summaries(w io.Writer, all []trace.Summary) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "TOOK\tWHAT\tOBJECT\tNAMESPACE\tMOST OF IT\tBY\tAT")
	for _, s := range all {
		most := "-"
		if s.Slowest.Stage != "" {
			most = fmt.Sprintf("%s %s (%s)", s.Slowest.Stage, Took(s.Slowest.Took), share(s.Slowest.Share))
		}
		took := Took(s.Took)
		if !s.Settled {
			took += " so far"
		}
		row(table, took, s.What, Object(s.Object), s.Object.Namespace, most, s.By, clock(s.Begin))
	}
	return table.Flush()
}

// Stats writes percentiles of stages as a table.
func Stats(w io.Writer, stages []trace.Percentiles) error {
	table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "STAGE\tCOUNT\tP50\tP90\tP99\tMAX\tWHAT IT IS")
	for _, s := range stages {
		row(table, string(s.Stage), fmt.Sprint(s.Count), Took(s.P50), Took(s.P90), Took(s.P99), Took(s.Max), about[s.Stage])
	}
	return table.Flush()
}

func row(w io.Writer, cells ...string) {
	for i, cell := range cells {
		if cell = oneline.Of(cell); cell == "" {
			cell = "-"
		}
		cells[i] = cell
	}
	fmt.Fprintln(w, strings.Join(cells, "\t"))
}

// Line is one stage as a line: since when, how long it took, and what it was.
func Line(t *trace.Timeline, s *trace.Span) string {
	took := Took(s.Duration())
	if s.Moment {
		took = ""
	}
	text := fmt.Sprintf("+%-7s %7s  %s  %s", Took(s.Begin.Sub(t.Begin)), took, oneline.Of(Object(s.Object)), oneline.Of(title(s)))
	if n := note(t, s); n != "" {
		text += ", " + n
	}
	if s.Error != "" {
		text += ": " + oneline.Of(s.Error)
	}
	return text
}
