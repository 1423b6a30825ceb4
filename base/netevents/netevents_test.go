package netevents

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
)

// TestFollow: a subscription that fails, or that the kernel ends, is followed by another; began is called before its
// events, and none stays open.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked, open := 0, 0
		subscribe := func(events chan<- int, done <-chan struct{}) error {
			if asked++; asked == 2 {
				return errors.New("no buffer")
			}
			first, ends := asked*10, asked == 1
			open++
			go func() {
				defer close(events)
				for i := range 2 {
					events <- first + i
				}
				if !ends {
					<-done
				}
				open--
			}()
			return nil
		}
		var seen []int
		Follow(ctx, subscribe, func() { seen = append(seen, 0) }, func(e int) {
			if seen = append(seen, e); e == 31 {
				cancel()
			}
		})
		if want := []int{0, 10, 11, 0, 30, 31}; !slices.Equal(seen, want) {
			t.Errorf("got %v, want %v", seen, want)
		}
		if open != 0 {
			t.Errorf("%d subscriptions are open", open)
		}
	})
}
