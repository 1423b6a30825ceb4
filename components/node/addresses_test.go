package node

import (
	"context"
	"errors"
	"testing"
	"time"
)

// An address that has changed ends the process when it was seen often enough in a row, and nothing else does.
func TestAddressWatch(t *testing.T) {
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
			w := &addressWatch{had: had, every: time.Microsecond, now: func([]string) ([]string, error) {
				if looked++; looked > len(c.seen) {
					cancel()
					return nil, nil
				}
				now := c.seen[looked-1]
				if now != nil && len(now) == 0 {
					return nil, errors.New("netlink")
				}
				return now, nil
			}}
			var cause error
			w.run(ctx, func(err error) { cause = err })
			var m moved
			if errors.As(cause, &m) != (c.want != "") || c.want != "" && m.to[0] != c.want {
				t.Errorf("ended with %v, want %q", cause, c.want)
			}
		})
	}
	var none *addressWatch
	none.run(t.Context(), nil) // an address that was set
}
