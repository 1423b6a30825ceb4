package logging

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// repeatAfter is how long further lines about the same webhook are dropped.
const repeatAfter = 10 * time.Second

// repeats drops lines that upstream's webhook dispatchers would write at each request: when a webhook or an admission
// plugin is down, hundreds of identical lines per second.
type repeats struct {
	mu   sync.Mutex
	seen map[string]repeated
}

type repeated struct {
	written time.Time
	left    int // lines since then
}

// shorten returns the line to write, or false. from is its source file.
func (r *repeats) shorten(from, line string, now time.Time) (string, bool) {
	if from != "dispatcher.go" {
		return line, true
	}
	about, _, _ := strings.Cut(line, ": ") // "Failed calling webhook, failing open NAME: why"
	r.mu.Lock()
	defer r.mu.Unlock()
	before, ok := r.seen[about]
	if ok && now.Sub(before.written) < repeatAfter {
		before.left++
		r.seen[about] = before
		return "", false
	}
	if r.seen == nil {
		r.seen = map[string]repeated{}
	}
	r.seen[about] = repeated{written: now}
	if before.left > 0 {
		line += fmt.Sprintf(" (and %d lines like this in between)", before.left)
	}
	return line, true
}

// saidAlready reports whether a dispatcher has logged the error, one line before.
func saidAlready(err error) bool {
	return err != nil && strings.HasPrefix(err.Error(), "failed calling webhook ")
}
