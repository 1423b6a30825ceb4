package preflight

import (
	"errors"
	"path/filepath"
	"testing"
)

// TestPassed: what has passed since the boot is not tried again, also not by the next process, and what has failed is.
func TestPassed(t *testing.T) {
	h, p := goodHost(t)
	h.Write("/proc/sys/kernel/random/boot_id", "first\n")
	file := filepath.Join(t.TempDir(), "passed")
	known := ReadPassed(file)
	broken := errors.New("broken")
	tried := 0
	try := func(known *Passed, rules string, err error) error {
		return known.try(p, "/usr/sbin/nft", rules, func() error { tried++; return err })
	}
	for _, step := range []struct {
		name  string
		rules string
		err   error
		fresh bool // read from the file
		boot  string
		tried int
	}{
		{"the first trial", "a", nil, false, "first", 1},
		{"again", "a", nil, false, "first", 1},
		{"other rules", "b", broken, false, "first", 2},
		{"what has failed", "b", broken, false, "first", 3},
		{"another process", "a", nil, true, "first", 3},
		{"another boot", "a", nil, true, "second", 4},
		{"after it", "a", nil, true, "second", 4},
	} {
		h.Write("/proc/sys/kernel/random/boot_id", step.boot)
		if step.fresh {
			if err := known.Write(); err != nil {
				t.Fatal(err)
			}
			known = ReadPassed(file)
		}
		if err := try(known, step.rules, step.err); !errors.Is(err, step.err) || tried != step.tried {
			t.Errorf("%s: %v after %d trials, want %v after %d", step.name, err, tried, step.err, step.tried)
		}
	}
	if err := try(nil, "a", nil); err != nil || tried != 5 {
		t.Errorf("kubelith check: %v after %d trials, want nil after 5", err, tried)
	}
}
