// Command report prints the table of docs/performance.md from the samples that the benchmarks stored.
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
	flag.Parse()
	if err := run(*path, *packed); err != nil {
		fmt.Fprintf(os.Stderr, "report: %v\n", err)
		os.Exit(1)
	}
}

func run(path, packed string) error {
	s, err := results.Open(path, "")
	if err != nil {
		return err
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
