package harness

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"kubelith.io/kubelith/host/sandbox"
)

// pollInterval is the time between two polls. Long waits poll less often, up to maxInterval, and so do polls that take
// long themselves, up to slowInterval: many start a program, and what they wait for needs the same CPUs.
const (
	pollInterval = 100 * time.Millisecond
	maxInterval  = 500 * time.Millisecond
	slowInterval = 1500 * time.Millisecond
)

// Patience returns how long to wait for what takes at most timeout on a real processor, see sandbox.Patience.
func Patience(timeout time.Duration) time.Duration { return sandbox.Patience(timeout) }

// Timeout returns the flag by which a program, such as kubectl, waits that long with Patience.
func Timeout(timeout time.Duration) string { return "--timeout=" + Patience(timeout).String() }

// Eventually polls f until it returns nil, and fails the test with f's last error after timeout and Patience.
func Eventually(t testing.TB, timeout time.Duration, what string, f func() error) {
	t.Helper()
	if err := poll(timeout, what, f); err != nil {
		t.Fatal(err)
	}
}

// Consistently fails the test as soon as f returns an error within the time: for what must not happen.
func Consistently(t testing.TB, during time.Duration, what string, f func() error) {
	t.Helper()
	for end := time.Now().Add(during); time.Now().Before(end); time.Sleep(pollInterval) {
		if err := f(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Permanent marks an error that waiting cannot cure: Eventually fails at once.
func Permanent(err error) error { return permanent{err} }

type permanent struct{ error }

func poll(timeout time.Duration, what string, f func() error) error {
	began, timeout := time.Now(), Patience(timeout)
	for {
		asked := time.Now()
		err := f()
		took := time.Since(asked)
		if err == nil {
			return nil
		}
		var p permanent
		if errors.As(err, &p) || time.Since(began) > timeout {
			return fmt.Errorf("waited %s for %s: %w", time.Since(began).Round(time.Millisecond), what, err)
		}
		longer := min(max(pollInterval, time.Since(began)/20), maxInterval)
		time.Sleep(max(longer, min(took, slowInterval, timeout/20)))
	}
}
