// Command report prints a table of docs/performance.md from the samples that the benchmarks stored.
package main

import (
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"kubelith.io/kubelith/bench/results"
)

// compare is the table that needs more than the samples.
const compare = "compare"

// tables are the others.
var tables = map[string]func(io.Writer, *results.Store){
	"admission":  results.AdmissionTable,
	"network":    results.NetworkTable,
	"scale":      results.ScaleTable,
	"scheduling": results.SchedulingTable,
	"storage":    results.StorageTable,
}

func main() {
	names := strings.Join(append([]string{compare}, slices.Sorted(maps.Keys(tables))...), ", ")
	path := flag.String("results", ".cache/bench/results.jsonl", "file of samples")
	packed := flag.String("packed", "", "the executable as zstd -19 packed it; its size is in the table")
	table := flag.String("table", compare, "whose samples they are: one of "+names)
	flag.Parse()
	if err := run(*path, *packed, *table, names); err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
		os.Exit(1)
	}
}

func run(path, packed, table, names string) error {
	s, err := results.Open(path, "")
	if err != nil {
		return err
	}
	if table != compare {
		print, found := tables[table]
		if !found {
			return fmt.Errorf("-table=%s is none of %s", table, names)
		}
		print(os.Stdout, s)
		return nil
	}
	var size int64
	if packed != "" {
		info, err := os.Stat(packed)
		if err != nil {
			return err
		}
		size = info.Size()
	}
	results.Table(os.Stdout, s, size)
	return nil
}
