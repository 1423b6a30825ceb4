package crashes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
)

// TestCrashLoop: a process that a goroutine of a component crashes leaves a note; the fourth one starts without that
// component, logs that, and does not block those that need it.
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
		if !errors.As(err, &exit) || !strings.Contains(out, "panic: ouch") || strings.Contains(out, "held back") {
			t.Fatalf("%v: %s", err, out)
		}
	}
	last, ok := crashOf(readPanic(filepath.Join(dir, crashFile)))
	before := readCrashes(filepath.Join(dir, crashesFile))
	if len(before) != crashesTaken || !ok || last.component != "dns" || last.text != "panic: ouch" {
		t.Fatalf("%v, then %v %v", before, ok, last)
	}
	out, err := start()
	want := `has crashed the process 3 times in a row, the last time with \"panic: ouch\"`
	if err != nil || !strings.Contains(out, "held back, starting in") || !strings.Contains(out, want) {
		t.Errorf("%v, and it does not say %q: %s", err, want, out)
	}
	if !strings.Contains(out, "previous: panic: ouch\n\tagain\n\ngoroutine ") {
		t.Errorf("it does not return the panic before: %s", out)
	}
	if text, _ := readPanic(filepath.Join(dir, crashFile)); text != "" {
		t.Errorf("%s after an end without a panic", text)
	}
}

// crashing is a process of three components. It ends when that has started which needs dns; dns, if it runs, ends it
// before.
func crashing(ctx context.Context, dir string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	held, previous, err := BreakLoops(dir, 0)
	if err != nil {
		return err
	}
	fmt.Println("previous:", previous)
	log := logrus.New()
	log.SetOutput(os.Stdout)
	group, err := lifecycle.NewGroup(lifecycle.Options{Log: log, Held: held},
		runs{"etcd", nil, lifecycle.EndProcess, func() {}},
		runs{"dns", []string{"etcd"}, lifecycle.RestartBeside, func() {
			go panic("ouch\nagain")
			select {}
		}},
		runs{"proxy", []string{"dns"}, lifecycle.RestartAlone, cancel})
	if err != nil {
		return err
	}
	return group.Run(ctx)
}

// runs is a component that does something before it is ready.
type runs struct {
	name   string
	needs  []string
	policy lifecycle.Policy
	do     func()
}

func (c runs) Name() string                    { return c.name }
func (c runs) Needs() []string                 { return c.needs }
func (c runs) RestartPolicy() lifecycle.Policy { return c.policy }
func (c runs) Run(ctx context.Context, ready func()) error {
	c.do()
	ready()
	<-ctx.Done()
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
