package results

import (
	"os"
	"strconv"
	"testing"
)

// OpenRun opens the file of samples that make gives a benchmark in BENCH_RESULTS, and returns ROUNDS with it. The test
// is skipped when this is no run of a benchmark; target is what makes one.
func OpenRun(t testing.TB, target string) (*Store, int) {
	t.Helper()
	path := os.Getenv("BENCH_RESULTS")
	if path == "" {
		t.Skip("not a benchmark run: use make " + target)
	}
	store, err := Open(path, os.Getenv("BENCH_BUILD"))
	if err != nil {
		t.Fatal(err)
	}
	return store, Number(t, "ROUNDS", 7)
}

// Number is that of a variable, or the other one where it is not set.
func Number(t testing.TB, variable string, otherwise int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		t.Fatalf("%s=%s: want a number of at least 0", variable, text)
	}
	return n
}
