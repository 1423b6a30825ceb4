package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// of returns the states of a component, as "state" or "state(pause)".
func (r *recorder) of(component string) string {
	var out []string
	for _, e := range r.events {
		if e.Component != component {
			continue
		}
		text := string(e.State)
		if e.State == BackingOff {
			text += fmt.Sprintf("(%s)", e.Next)
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

// TestRestart: a component that may be is restarted, whatever ended it, and no other component notices.
func TestRestart(t *testing.T) {
	boom := errors.New("boom")
	for name, tc := range map[string]struct {
		run  func(ready func()) error
		want string
	}{
		"before ready": {func(func()) error { return boom }, "boom"},
		"after ready":  {func(ready func()) error { ready(); return boom }, "boom"},
		"nil":          {func(ready func()) error { ready(); return nil }, "stopped unexpectedly"},
		"panic":        {func(func()) error { panic("ouch") }, "panic: ouch"},
		"goexit":       {func(func()) error { runtime.Goexit(); return nil }, "its goroutine called runtime.Goexit"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				rec, err := runGroup(t, Options{}, "c ready",
					fake{name: "a"},
					fake{name: "b", policy: RestartBeside, needs: []string{"a"}, run: func(ctx context.Context, ready func()) error {
						if runs.Add(1) == 1 {
							return tc.run(ready)
						}
						return fake{}.Run(ctx, ready)
					}},
					fake{name: "c", needs: []string{"b"}, run: func(ctx context.Context, ready func()) error {
						for runs.Load() < 2 {
							time.Sleep(time.Millisecond)
						}
						return fake{}.Run(ctx, ready)
					}},
				)
				if err != nil || runs.Load() != 2 {
					t.Fatalf("error %v after %d runs", err, runs.Load())
				}
				i := rec.index("b", BackingOff)
				if i < 0 || rec.events[i].Err == nil || rec.events[i].Err.Error() != tc.want || rec.events[i].Next != time.Second {
					t.Errorf("no pause of a second because of %q: %+v", tc.want, rec.events)
				}
				if n := len(strings.Fields(rec.of("a"))); n != 4 {
					t.Errorf("a went through %s", rec.of("a"))
				}
				if a, b := rec.index("b", Stopped), rec.index("a", Stopping); a < 0 || b < 0 || a > b {
					t.Errorf("a was stopped before b: %+v", rec.events)
				}
			})
		})
	}
}

// TestPauses: they double up to the longest, and start over after a run that was ready for long.
func TestPauses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives := []time.Duration{0, 0, 0, 0, time.Minute, time.Hour, 0}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var pauses []time.Duration
		g, err := NewGroup(Options{
			Timing: Timing{First: time.Second, Longest: 5 * time.Second, ResetAfter: 10 * time.Minute},
			Observe: func(e Event) {
				if e.State == BackingOff {
					pauses = append(pauses, e.Next)
				}
			},
		}, fake{name: "b", policy: RestartBeside, run: func(ctx context.Context, ready func()) error {
			if len(pauses) == len(lives) {
				cancel()
				return nil
			}
			ready()
			time.Sleep(lives[len(pauses)])
			return errors.New("boom")
		}})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		const s = time.Second
		if want := []time.Duration{s, 2 * s, 4 * s, 5 * s, 5 * s, s, 2 * s}; !slices.Equal(pauses, want) {
			t.Errorf("pauses %v, want %v", pauses, want)
		}
	})
}

// A stop does not wait for a pause, and a failure of others stops a component that pauses.
func TestStopDuringPause(t *testing.T) {
	for _, failure := range []error{nil, errors.New("disk full")} {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			paused := make(chan struct{})
			rec := &recorder{cancel: func() {
				close(paused)
				if failure == nil {
					cancel()
				}
			}, cancelWhen: "b backing off"}
			g, err := NewGroup(Options{Timing: Timing{First: time.Hour, Longest: time.Hour}, Observe: rec.observe},
				fake{name: "a", run: func(ctx context.Context, ready func()) error {
					ready()
					<-paused
					if failure == nil {
						<-ctx.Done()
					}
					return failure
				}},
				fake{name: "b", policy: RestartBeside, needs: []string{"a"}, run: func(context.Context, func()) error { return errors.New("boom") }})
			if err != nil {
				t.Fatal(err)
			}
			err = g.Run(ctx)
			if !errors.Is(err, failure) || time.Since(began) > time.Minute {
				t.Errorf("error %v after %s, want %v at once", err, time.Since(began), failure)
			}
		})
	}
}

// TestNeedThatRestarts: a component that waits for it gets it later; one that has it goes on.
func TestNeedThatRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow := make(chan struct{})
		var runs atomic.Int32
		rec, err := runGroup(t, Options{}, "late ready",
			fake{name: "b", policy: RestartAlone, run: func(ctx context.Context, ready func()) error {
				if runs.Add(1) == 1 {
					ready()
					time.Sleep(time.Second)
					close(slow)
					return errors.New("boom")
				}
				return fake{}.Run(ctx, ready)
			}},
			fake{name: "early", needs: []string{"b"}},
			fake{name: "slow", run: func(ctx context.Context, ready func()) error {
				<-slow
				return fake{}.Run(ctx, ready)
			}},
			fake{name: "late", needs: []string{"b", "slow"}},
		)
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.of("early"); got != "starting ready stopping stopped" {
			t.Errorf("early: %s", got)
		}
		if starting, down := rec.index("late", Starting), rec.index("b", BackingOff); starting < down || rec.events[starting-1].State != Ready {
			t.Errorf("late did not wait: %+v", rec.events)
		}
	})
}

// patient is a component that reports its health.
type patient struct {
	fake
	healthy func(context.Context) error
}

func (p patient) Healthy(ctx context.Context) error { return p.healthy(ctx) }

var hang = Timing{AskEvery: time.Second, HangAfter: 5 * time.Second, EndWithin: 3 * time.Second}

// TestHang: a component that reports for long that it is unhealthy, or does not answer, is ended and restarted.
func TestHang(t *testing.T) {
	for name, ill := range map[string]func(context.Context) error{
		"says so":    func(context.Context) error { return errors.New("the loop stands") },
		"is silent":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"panics":     func(context.Context) error { panic("ouch") },
		"has exited": func(context.Context) error { runtime.Goexit(); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var runs atomic.Int32
				var restarting atomic.Bool
				_, err := runGroup(t, Options{Timing: hang}, "c ready",
					patient{fake{name: "b", policy: RestartAlone, run: func(ctx context.Context, ready func()) error {
						runs.Add(1)
						err := fake{}.Run(ctx, ready)
						restarting.CompareAndSwap(false, Restarting(ctx))
						return err
					}}, func(ctx context.Context) error {
						if runs.Load() == 1 {
							return ill(ctx)
						}
						return nil
					}},
					fake{name: "c", run: func(ctx context.Context, ready func()) error {
						time.Sleep(9 * time.Second)
						return fake{}.Run(ctx, ready)
					}},
				)
				if err != nil || runs.Load() != 2 || !restarting.Load() {
					t.Errorf("error %v, %d runs, cause is the restart: %t", err, runs.Load(), restarting.Load())
				}
			})
		})
	}
}

// A moment of bad health is no hang.
func TestRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		rec, err := runGroup(t, Options{Timing: hang}, "c ready",
			patient{fake{name: "b", policy: RestartBeside}, func(context.Context) error {
				if asked.Add(1)%4 == 0 {
					return nil
				}
				return errors.New("slow")
			}},
			fake{name: "c", run: func(ctx context.Context, ready func()) error {
				time.Sleep(9 * time.Second)
				return fake{}.Run(ctx, ready)
			}},
		)
		if err != nil || asked.Load() < 8 || rec.index("b", Ending) >= 0 {
			t.Errorf("error %v, asked %d times: %s", err, asked.Load(), rec.of("b"))
		}
	})
}

// TestAbandon: a run that does not end is abandoned if another may run beside it, and otherwise ends the Group.
func TestAbandon(t *testing.T) {
	for _, policy := range []Policy{RestartBeside, RestartAlone} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			var runs atomic.Int32
			stuck := fake{name: "b", policy: policy, run: func(ctx context.Context, ready func()) error {
				ready()
				if runs.Add(1) == 1 {
					<-release
					return errors.New("too late to matter")
				}
				<-ctx.Done()
				return nil
			}}
			rec, err := runGroup(t, Options{Timing: hang}, "b returned",
				fake{name: "a"},
				patient{stuck, func(context.Context) error {
					switch runs.Load() {
					case 1:
						return errors.New("the loop stands")
					case 2:
						runs.Add(1)
						close(release)
					}
					return nil
				}})
			if policy == RestartAlone {
				want := "b: hangs: the loop stands, and did not stop within 3s: a second run beside it is not safe, so the process exits"
				if err == nil || err.Error() != want {
					t.Errorf("error %v\nwant  %s", err, want)
				}
				if rec.index("a", Stopped) < 0 {
					t.Error("a was not stopped in order")
				}
				close(release)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := rec.of("b"); !strings.HasPrefix(got, "starting ready ending backing off(1s) starting ready returned") {
				t.Errorf("b: %s", got)
			}
			var abandoned []int
			for _, e := range rec.events {
				if e.State == BackingOff || e.State == Returned {
					abandoned = append(abandoned, e.Abandoned)
				}
			}
			if !slices.Equal(abandoned, []int{1, 0}) {
				t.Errorf("abandoned runs: %v", abandoned)
			}
		})
	}
}

// TestStopWhileEnding: a stop takes over from a restart.
func TestStopWhileEnding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rec, err := runGroup(t, Options{Timing: hang, StopTimeout: time.Minute}, "b ending",
			patient{fake{name: "b", policy: RestartAlone, run: func(ctx context.Context, ready func()) error {
				ready()
				<-ctx.Done()
				time.Sleep(20 * time.Second) // longer than an end may take, were it no stop
				return nil
			}}, func(context.Context) error { return errors.New("the loop stands") }})
		if err != nil || rec.of("b") != "starting ready ending stopped" {
			t.Errorf("error %v: %s", err, rec.of("b"))
		}
	})
}

// TestFail: a component whose goroutine has panicked is ended and restarted; Fail does nothing to one that ends the
// process.
func TestFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g *Group
		var runs atomic.Int32
		rec := &recorder{cancelWhen: "c ready"}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		rec.cancel = cancel
		g, err := NewGroup(Options{Observe: rec.observe},
			fake{name: "b", policy: RestartAlone, run: func(ctx context.Context, ready func()) error {
				if runs.Add(1) == 1 {
					if g.Fail("c", errors.New("boom")) || g.Fail("nobody", errors.New("boom")) {
						t.Error("a component that ends the process was taken")
					}
					if !g.Fail("b", errors.New("boom")) {
						t.Error("b was not taken")
					}
				}
				return fake{}.Run(ctx, ready)
			}},
			fake{name: "c", run: func(ctx context.Context, ready func()) error {
				for runs.Load() < 2 {
					time.Sleep(time.Millisecond)
				}
				return fake{}.Run(ctx, ready)
			}})
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Run(ctx); err != nil {
			t.Error(err)
		}
		if i := rec.index("b", Ending); i < 0 || rec.events[i].Err.Error() != "boom" {
			t.Errorf("%+v", rec.events)
		}
		g.Fail("b", errors.New("after all")) // does not block
	})
}

func TestWatchdog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &Watchdog{Limit: time.Minute}
		ctx := t.Context()
		quick, slow := w.Begin("reading"), w.Begin("writing")
		time.Sleep(time.Minute)
		if err := w.Healthy(ctx); err != nil {
			t.Error(err)
		}
		quick()
		time.Sleep(time.Second)
		if err := w.Healthy(ctx); err == nil || err.Error() != "writing has taken 1m1s so far" {
			t.Errorf("%v", err)
		}
		slow()
		if err := w.Healthy(ctx); err != nil {
			t.Error(err)
		}
		slow = w.Begin("of a run that never ends")
		time.Sleep(time.Hour)
		w.Reset()
		if err := w.Healthy(ctx); err != nil {
			t.Error(err)
		}
		slow()
	})
}

// TestHold: a held component starts when the hold is over; those that need it do not wait.
func TestHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		b, c := time.Duration(-1), time.Duration(-1)
		rec, err := runGroup(t, Options{Held: map[string]Hold{"b": {began.Add(10 * time.Second), errors.New("boom")}, "c": {Until: began.Add(10 * time.Second)}}}, "b ready",
			fake{name: "b", policy: RestartBeside, run: func(ctx context.Context, ready func()) error {
				b = time.Since(began)
				return fake{}.Run(ctx, ready)
			}},
			fake{name: "c", needs: []string{"b"}, run: func(ctx context.Context, ready func()) error { // ends the process
				c = time.Since(began)
				return fake{}.Run(ctx, ready)
			}})
		if err != nil || b != 10*time.Second || c != 0 {
			t.Errorf("%v; b started after %s, c after %s", err, b, c)
		}
		if got := rec.of("b"); got != "backing off(10s) starting ready stopping stopped" {
			t.Errorf("b went through %s", got)
		}
		if e := rec.events[0]; e.Err == nil || e.Err.Error() != "boom" {
			t.Errorf("the first event is %+v", e)
		}
	})
}
