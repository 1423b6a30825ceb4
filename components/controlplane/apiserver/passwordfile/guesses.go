package passwordfile

import (
	"sync"
	"time"
)

// A client has so many wrong passwords for a user at once, then one a second. More are refused without a comparison,
// right ones too: their answer would show which is right. Other users, and the same user from elsewhere, are not
// affected.
const (
	wrongAtOnce = 10
	maxGuesses  = 4096 // that are remembered
)

// guess is who guesses: a client, and for which user. All users that do not exist are one.
type guess struct{ user, from string }

// guesses counts wrong passwords. The zero value has none.
type guesses struct {
	mu    sync.Mutex
	wrong map[guess]*count
	now   func() time.Time // nil: time.Now
}

// count of wrong passwords, minus one for each second since.
type count struct {
	wrong float64
	at    time.Time
}

// try compares unless there were too many wrong passwords. One at a time, so that parallel guesses count as well.
func (g *guesses) try(who guess, compare func() bool) (right, tried bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.now != nil {
		now = g.now()
	}
	c := g.wrong[who]
	if c != nil && c.left(now) > wrongAtOnce-1 {
		return false, false
	}
	if compare() {
		return true, true
	}
	if c == nil {
		c = g.add(who, now)
	}
	c.wrong, c.at = c.left(now)+1, now
	return false, true
}

func (c *count) left(now time.Time) float64 {
	return max(0, c.wrong-now.Sub(c.at).Seconds())
}

// add makes room for another one: it drops those that are over or, if none is, any.
func (g *guesses) add(who guess, now time.Time) *count {
	if g.wrong == nil {
		g.wrong = map[guess]*count{}
	}
	if len(g.wrong) >= maxGuesses {
		for other, c := range g.wrong {
			if c.left(now) == 0 {
				delete(g.wrong, other)
			}
		}
	}
	for other := range g.wrong {
		if len(g.wrong) < maxGuesses {
			break
		}
		delete(g.wrong, other)
	}
	c := &count{at: now}
	g.wrong[who] = c
	return c
}
