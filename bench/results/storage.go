package results

import (
	"fmt"
	"io"
)

// The volumes of bench/plugins: a claim of the built-in driver's class, and what needs no driver.
const (
	Claims    = "claim"
	EmptyDirs = "emptyDir"
)

// Figures of bench/plugins about storage: 50 pods with a volume each, created at once. Each pod counts from its claim or,
// without one, from its own creation.
const (
	BoundMedian   = "claim bound, median of 50 (s)"
	BoundLast     = "claim bound, last of 50 (s)"
	MountedMedian = "pod running with its volume, median of 50 (s)"
	MountedLast   = "pod running with its volume, last of 50 (s)"
)

// StorageTable writes the markdown of docs/performance.md about volumes.
func StorageTable(w io.Writer, s *Store) {
	fmt.Fprintf(w, "| figure | %s | %s |\n|---|---|---|\n", Claims, EmptyDirs)
	for _, f := range []string{BoundMedian, BoundLast, MountedMedian, MountedLast} {
		fmt.Fprintf(w, "| %s |", f)
		for _, with := range []string{Claims, EmptyDirs} {
			if v := s.Values(with, f); len(v) > 0 {
				fmt.Fprintf(w, " %s |", cell(v))
			} else {
				fmt.Fprint(w, " |")
			}
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "\nMedians of %d rounds.\n", s.Rounds("storage", Claims))
}
