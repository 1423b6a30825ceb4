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

// Metrics of bench/plugins about storage: 50 pods with a volume each, created at once. Each pod counts from its claim
// or, without one, from its own creation.
const (
	BoundMedian   = "claim bound, median of 50 (s)"
	BoundLast     = "claim bound, last of 50 (s)"
	MountedMedian = "pod running with its volume, median of 50 (s)"
	MountedLast   = "pod running with its volume, last of 50 (s)"
)

// StorageTable writes the markdown of docs/performance.md about volumes.
func StorageTable(w io.Writer, s *Store) {
	writeRows(w, s, []string{Claims, EmptyDirs}, []string{BoundMedian, BoundLast, MountedMedian, MountedLast})
	fmt.Fprintf(w, "\nMedians of %d rounds.\n", s.Rounds("storage", Claims))
}
