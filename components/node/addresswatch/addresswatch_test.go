package addresswatch

import (
	"context"
	"errors"
	"testing"
	"time"
)

// An address that has changed ends the process when it was seen often enough in a row, and nothing else does.
func TestWatch(t *testing.T) {
	signals := func(ctx context.Context, changed func()) {
		for ; ctx.Err() == nil; time.Sleep(time.Microsecond) {
			changed()
		}
	}
	had := []string{"192.0.2.1"}
	next, other := []string{"192.0.2.2"}, []string{"192.0.2.3"}
	for name, c := range map[string]struct {
		seen [][]string // nil: as it was; empty: an error
		want string     // the new address; empty: it goes on
	}{
		"as it was":              {seen: [][]string{nil, nil, nil, nil}},
		"changed":                {seen: [][]string{nil, next, next, next}, want: "192.0.2.2"},
		"for a moment":           {seen: [][]string{next, next, nil, next, next, nil}},
		"not readable meanwhile": {seen: [][]string{next, next, {}, next, next}},
		"twice":                  {seen: [][]string{next, next, other, other, other}, want: "192.0.2.3"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			looked := 0
			w := &Watch{had: had, every: time.Microsecond, follow: signals, now: func([]string) ([]string, bool, error) {
				if looked++; looked > len(c.seen) {
					cancel()
					return nil, false, nil
				}
				now := c.seen[looked-1]
				if now != nil && len(now) == 0 {
					return nil, false, errors.New("netlink")
				}
				return now, now != nil, nil
			}}
			var cause error
			w.Run(ctx, func(err error) { cause = err })
			var m Moved
			if errors.As(cause, &m) != (c.want != "") || c.want != "" && m.to[0] != c.want {
				t.Errorf("ended with %v, want %q", cause, c.want)
			}
		})
	}
	t.Run("missing", func(t *testing.T) { // looks again without a signal, until there is a new one
		looked := 0
		silent := func(ctx context.Context, _ func()) { <-ctx.Done() }
		w := &Watch{had: had, every: time.Microsecond, follow: silent, now: func([]string) ([]string, bool, error) {
			if looked++; looked < 5 {
				return nil, true, nil
			}
			return next, true, nil
		}}
		var cause error
		w.Run(t.Context(), func(err error) { cause = err })
		if looked != 5+lookTimes-1 || cause == nil {
			t.Errorf("ended with %v after %d looks", cause, looked)
		}
	})
	t.Run("as it was, and no signal", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		looked := 0
		silent := func(ctx context.Context, _ func()) { <-ctx.Done() }
		w := &Watch{had: had, every: time.Microsecond, follow: silent, now: func([]string) ([]string, bool, error) {
			looked++
			return nil, false, nil
		}}
		if w.Run(ctx, func(err error) { t.Error(err) }); looked != 1 {
			t.Errorf("%d looks, want one", looked)
		}
	})
	var none *Watch
	none.Run(t.Context(), nil) // an address that was set
}
