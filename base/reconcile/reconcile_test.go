package reconcile

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"
)

// run returns when Loop called look, from its start on, in 10 s.
func run(t *testing.T, settle time.Duration, signals []time.Duration, again func(n int) time.Duration) (looks []time.Duration) {
	synctest.Test(t, func(t *testing.T) {
		began, changed := time.Now(), NewSignal()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		for _, at := range signals {
			time.AfterFunc(at, changed.Send)
		}
		Loop(ctx, changed, settle, func() time.Duration {
			looks = append(looks, time.Since(began))
			return again(len(looks))
		})
	})
	return looks
}

func TestLoop(t *testing.T) {
	const s = time.Second
	never := func(int) time.Duration { return 0 }
	var steady []time.Duration
	for at := s; at < 4*s; at += 100 * time.Millisecond {
		steady = append(steady, at)
	}
	for name, tc := range map[string]struct {
		settle  time.Duration
		signals []time.Duration
		again   func(int) time.Duration
		want    []time.Duration
	}{
		"once":                        {0, nil, never, []time.Duration{0}},
		"a signal":                    {0, []time.Duration{3 * s}, never, []time.Duration{0, 3 * s}},
		"signals that settle":         {s, []time.Duration{3 * s, 3500 * time.Millisecond}, never, []time.Duration{0, 4 * s}},
		"steady signals":              {3 * s, steady, never, []time.Duration{0, 4 * s}},
		"again":                       {0, nil, func(int) time.Duration { return 4 * s }, []time.Duration{0, 4 * s, 8 * s}},
		"a signal before it is again": {0, []time.Duration{s}, func(n int) time.Duration { return 4 * s }, []time.Duration{0, s, 5 * s, 9 * s}},
		"no longer again": {0, []time.Duration{2 * s}, func(n int) time.Duration {
			if n == 1 {
				return 4 * s
			}
			return 0
		}, []time.Duration{0, 2 * s}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := run(t, tc.settle, tc.signals, tc.again); !reflect.DeepEqual(got, tc.want) {
				t.Errorf("passes at %v, want %v", got, tc.want)
			}
		})
	}
}

// TestSignal: many become one, and none blocks.
func TestSignal(t *testing.T) {
	s := NewSignal()
	s.Send()
	s.Send()
	<-s
	select {
	case <-s:
		t.Error("two signals are pending")
	default:
	}
}

// TestBroadcast: a Send wakes all who wait, and none who comes later; a change after Next is not missed.
func TestBroadcast(t *testing.T) {
	var b Broadcast
	b.Send() // nobody waits
	one, two := b.Next(), b.Next()
	select {
	case <-one:
		t.Fatal("woken before the change")
	default:
	}
	b.Send()
	for _, next := range []<-chan struct{}{one, two} {
		select {
		case <-next:
		default:
			t.Error("not woken")
		}
	}
	select {
	case <-b.Next():
		t.Error("woken by a change of before")
	default:
	}
}

// TestLoopEnds: a call that is due when ctx has ended is not made.
func TestLoopEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	Loop(ctx, nil, 0, func() time.Duration { t.Error("looked"); return 0 })
}
