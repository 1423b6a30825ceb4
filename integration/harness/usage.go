package harness

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
)

// AnonymousMB returns a process's proportional share of anonymous memory, in MB of 10^6 bytes.
func AnonymousMB(t testing.TB, pid int) float64 {
	t.Helper()
	rollup, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(rollup)) {
		if value, ok := strings.CutPrefix(line, "Pss_Anon:"); ok {
			kib, err := strconv.ParseFloat(strings.Fields(value)[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return kib * 1024 / 1e6
		}
	}
	t.Fatalf("process %d: no Pss_Anon in smaps_rollup", pid)
	return 0
}

// CPUSeconds returns the CPU time of a process and of the children that it has waited for.
func CPUSeconds(t testing.TB, pid int) float64 {
	t.Helper()
	return stat(t, pid).CPU
}
