package logging

import (
	"errors"
	"testing"
	"time"
)

func TestRepeats(t *testing.T) {
	const a, b = "Failed calling webhook, failing open a: away", "Failed calling webhook, failing open b: away"
	start := time.Now()
	var r repeats
	for i, step := range []struct {
		from, line string
		after      time.Duration
		want       string // empty: left out
	}{
		{"dispatcher.go", a, 0, a},
		{"dispatcher.go", a, time.Second, ""},
		{"dispatcher.go", b, time.Second, b},
		{"dispatcher.go", a, 9 * time.Second, ""},
		{"dispatcher.go", a, 11 * time.Second, a + " (and 2 lines like this in between)"},
		{"dispatcher.go", a, 12 * time.Second, ""},
		{"dispatcher.go", b, 30 * time.Second, b},
		{"other.go", a, 12 * time.Second, a},
		{"other.go", a, 12 * time.Second, a},
	} {
		if line, ok := r.shorten(step.from, step.line, start.Add(step.after)); line != step.want || ok != (step.want != "") {
			t.Errorf("line %d: %q, %v, want %q", i, line, ok, step.want)
		}
	}
	if !saidAlready(errors.New(`failed calling webhook "a": away`)) || saidAlready(errors.New("else")) || saidAlready(nil) {
		t.Error("errors of webhooks are not distinguished from others")
	}
}
