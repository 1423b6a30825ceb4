// Command report prints a table of docs/performance.md from the samples that the benchmarks stored.
package main

import (
	"flag"
	"fmt"
	"os"

	"kubelith.io/kubelith/bench/results"
)

func main() {
	path := flag.String("results", ".cache/bench/results.jsonl", "file of samples")
	packed := flag.String("packed", "", "the executable as zstd -19 packed it; its size is in the table")
	table := flag.String("table", "compare", "whose samples they are: compare, network or storage")
	flag.Parse()
	if err := run(*path, *packed, *table); err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
		os.Exit(1)
	}
}

func run(path, packed, table string) error {
	s, err := results.Open(path, "")
	if err != nil {
		return err
	}
	switch table {
	case "compare":
	case "network":
		results.NetworkTable(os.Stdout, s)
		return nil
	case "storage":
		results.StorageTable(os.Stdout, s)
		return nil
	default:
		return fmt.Errorf("-table=%s is none of compare, network, storage", table)
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
