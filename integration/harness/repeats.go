package harness

import (
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// MostRepeated returns the line that a log has most often, and how often. Lines that differ in numbers alone are the same.
// What the mutation detector says, which the harness switches on, does not count.
func MostRepeated(log string) (line string, times int) {
	seen := map[string]int{}
	for l := range strings.Lines(log) {
		_, l, _ = strings.Cut(l, " ") // the time
		if strings.Contains(l, "Mutation detector is enabled") {
			continue
		}
		key := variable.ReplaceAllString(l, "N")
		if seen[key]++; seen[key] > times {
			line, times = l, seen[key]
		}
	}
	return line, times
}
