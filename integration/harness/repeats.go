package harness

import (
	"regexp"
	"strings"
)

var variable = regexp.MustCompile(`[0-9a-f]{8,}|[0-9]+`)

// MostRepeated returns the most frequent line of a log, and how often it occurs. Lines that differ only in numbers are
// the same. Lines of the mutation detector, which the harness enables, do not count.
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
