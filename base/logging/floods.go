package logging

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// floodLines is how many warnings or errors that differ only in numbers are written within floodTime.
	floodLines = 10
	floodTime  = 10 * time.Second
	// slowTime is how long one line about a slow etcd is enough: a slow disk causes dozens per second.
	slowTime = time.Minute
	// floodsKnown bounds the memory.
	floodsKnown = 1000
)

// floods drops lines that a component repeats. The first line afterwards reports how many there were.
type floods struct {
	mu   sync.Mutex
	seen map[string]*flood
}

type flood struct {
	began time.Time
	lines int // written since then
	left  int // left out since then
}

// shorten returns the message to write, or false. Plugins have their own limits (plugins/process).
func (f *floods) shorten(s said, level logrus.Level, now time.Time) (string, bool) {
	if level > logrus.WarnLevel || s.component == "plugins" {
		return s.message, true
	}
	most, during := floodLines, floodTime
	if s.component == "etcd" && (s.message == "apply request took too long" || strings.HasPrefix(s.message, "leader failed to send out heartbeat on time")) {
		most, during = 1, slowTime
	}
	key := s.component + " " + withoutDigits(s.message) + " " + withoutDigits(s.err)
	f.mu.Lock()
	defer f.mu.Unlock()
	about := f.seen[key]
	switch {
	case about == nil:
		if f.seen == nil || len(f.seen) >= floodsKnown {
			f.seen = map[string]*flood{}
		}
		about = &flood{began: now}
		f.seen[key] = about
	case now.Sub(about.began) >= during:
		left := about.left
		*about = flood{began: now, lines: 1}
		if left > 0 {
			return fmt.Sprintf("%s (and %d lines like this in between)", s.message, left), true
		}
		return s.message, true
	case about.lines >= most:
		about.left++
		return "", false
	}
	about.lines++
	return s.message, true
}

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if '0' <= r && r <= '9' {
			return -1
		}
		return r
	}, s)
}
