package crashes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"testing"
	"time"

	"kubelith.io/kubelith/base/lifecycle"
)

// TestCrashLoop: a process that a goroutine of a component crashes leaves a note; the fourth one is told to leave that
// component out.
func TestCrashLoop(t *testing.T) {
	const variable = "KUBELITH_TEST_CRASH"
	if dir := os.Getenv(variable); dir != "" {
		if err := crashing(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		return
	}
	dir := t.TempDir()
	start := func() (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "/proc/self/exe", "-test.run=^TestCrashLoop$")
		cmd.Env = append(os.Environ(), variable+"="+dir)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	for range crashesTaken + 1 {
		out, err := start()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(out, "panic: ouch") || strings.Contains(out, "held:") {
			t.Fatalf("%v: %s", err, out)
		}
	}
	last, ok := crashOf(readPanic(filepath.Join(dir, crashFile)))
	before := readCrashes(filepath.Join(dir, crashesFile))
	if len(before) != crashesTaken || !ok || last.component != "dns" || last.text != "panic: ouch" {
		t.Fatalf("%v, then %v %v", before, ok, last)
	}
	out, err := start()
	want := `held: has crashed the process 3 times in a row, the last time with "panic: ouch"`
	if err != nil || !strings.Contains(out, want) {
		t.Errorf("%v, and it does not say %q: %s", err, want, out)
	}
	if !strings.Contains(out, "previous: panic: ouch\n\tagain\n\ngoroutine ") {
		t.Errorf("it does not return the panic before: %s", out)
	}
	if text, _ := readPanic(filepath.Join(dir, crashFile)); text != "" {
		t.Errorf("%s after an end without a panic", text)
	}
}

// crashing is a process that a goroutine of dns ends, unless dns is held.
func crashing(ctx context.Context, dir string) error {
	held, previous, err := BreakLoops(dir, 0)
	if err != nil {
		return err
	}
	fmt.Println("previous:", previous)
	if hold, ok := held["dns"]; ok {
		fmt.Println("held:", hold.Why)
		return nil
	}
	pprof.Do(ctx, pprof.Labels(lifecycle.Label, "dns"), func(context.Context) {
		go panic("ouch\nagain")
		select {}
	})
	return nil
}

// TestHeld: three crashes in a row leave a component out, each further one for longer.
func TestHeld(t *testing.T) {
	now := time.Unix(1e9, 0)
	for name, tc := range map[string]struct {
		component string
		ago       []time.Duration
		want      time.Duration // from now on
	}{
		"none":                      {"dns", nil, 0},
		"two":                       {"dns", []time.Duration{time.Minute, 0}, 0},
		"three":                     {"dns", []time.Duration{2 * time.Minute, time.Minute, 0}, 10 * time.Minute},
		"three, a while ago":        {"dns", []time.Duration{9 * time.Minute, 8 * time.Minute, 7 * time.Minute}, 3 * time.Minute},
		"three, the hold is over":   {"dns", []time.Duration{19 * time.Minute, 18 * time.Minute, 17 * time.Minute}, 0},
		"three far apart":           {"dns", []time.Duration{time.Hour, 30 * time.Minute, 0}, 0},
		"again, right after a hold": {"dns", []time.Duration{12 * time.Minute, 11 * time.Minute, 10 * time.Minute, 0}, 20 * time.Minute},
		"again, and again":          {"dns", []time.Duration{33 * time.Minute, 32 * time.Minute, 31 * time.Minute, 21 * time.Minute, 0}, 40 * time.Minute},
		"well in between":           {"dns", []time.Duration{33 * time.Minute, 32 * time.Minute, 31 * time.Minute, 0}, 0},
		"the clock was set back":    {"dns", []time.Duration{-time.Hour, -2 * time.Hour, -3 * time.Hour}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			crashes := []crash{{now, "proxy", "x"}}
			for _, ago := range tc.ago {
				crashes = append(crashes, crash{now.Add(-ago), tc.component, "x"})
			}
			var got time.Duration
			out := held(crashes, now, firstHold)
			if hold, ok := out[tc.component]; ok {
				got = hold.Until.Sub(now)
			}
			if got != tc.want {
				t.Errorf("held for %s, want %s", got, tc.want)
			}
			if _, ok := out["proxy"]; ok {
				t.Error("another one is held")
			}
		})
	}
}
