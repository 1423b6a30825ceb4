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
	table := flag.String("table", "compare", "whose samples they are: compare, network, scale, admission or scheduling")
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
	case "admission":
		results.AdmissionTable(os.Stdout, s)
		return nil
	case "network":
		results.NetworkTable(os.Stdout, s)
		return nil
	case "scheduling":
		results.SchedulingTable(os.Stdout, s)
		return nil
	case "scale":
		results.ScaleTable(os.Stdout, s)
		return nil
	default:
		return fmt.Errorf("-table=%s is none of compare, network, scale, admission, scheduling", table)
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
