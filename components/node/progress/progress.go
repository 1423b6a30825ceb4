// Package progress follows a start: which components are ready, and what the user at the terminal (Tracker) and the
// service manager (Systemd) learn about it.
package progress

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"kubelith.io/kubelith/base/lifecycle"
	"kubelith.io/kubelith/base/reconcile"
)

// Goal is when a server or an agent has started.
type Goal struct {
	Role    string        // what is started, shown to the user
	Needed  []string      // the components that must be ready; the others are reported, and not waited for
	Reached string        // shown to the user then
	Next    func() string // what to do next, shown when everything is ready; may be nil
}

// Tracker counts the ready components and reports to the user.
type Tracker struct {
	out   io.Writer
	goal  Goal
	begin time.Time

	mu      sync.Mutex
	all     []string
	ready   []string
	reached bool // every needed component has been ready
}

// New returns a Tracker of the components with these names. It writes to out, the user's terminal, if there is one.
func New(out io.Writer, components []string, goal Goal) *Tracker {
	return &Tracker{out: out, goal: goal, begin: time.Now(), all: components}
}

// Observe counts and reports an event of the Group.
func (t *Tracker) Observe(e lifecycle.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.State {
	case lifecycle.Ready:
		if slices.Contains(t.ready, e.Component) {
			return // it was restarted
		}
		t.ready = append(t.ready, e.Component)
		t.print("%-20s ready   %6.2fs\n", e.Component, e.Since.Seconds())
		missing := without(t.all, t.ready)
		if !t.reached && len(without(t.goal.Needed, t.ready)) == 0 {
			t.reached = true
			t.print("%-20s ready   %6.2fs   %s\n", "kubelith", time.Since(t.begin).Seconds(), t.goal.Reached)
			if len(missing) > 0 {
				t.print("still starting: %s\n", strings.Join(missing, ", "))
			}
		}
		if len(missing) == 0 && t.goal.Next != nil {
			t.print("%s", t.goal.Next())
		}
	case lifecycle.Stopped:
		t.print("%-20s stopped\n", e.Component)
	case lifecycle.Failed: // the reason is the last line on stderr
		t.print("%-20s failed  %6.2fs\n", e.Component, e.Since.Seconds())
	}
}

// Printf writes to the user, if one watches the start.
func (t *Tracker) Printf(format string, a ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.print(format, a...)
}

// print is Printf for those that hold the lock.
func (t *Tracker) print(format string, a ...any) {
	if t.out != nil {
		fmt.Fprintf(t.out, format, a...)
	}
}

// State reports whether every needed component is ready, and which components are not.
func (t *Tracker) State() (reached bool, missing []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.reached, without(t.all, t.ready)
}

// firstReminder is the time until a slow start first reports what it waits for.
const firstReminder = 30 * time.Second

// Remind reports what the start waits for, at growing intervals, until nothing is missing or ctx ends. There is no
// limit: a slow disk or an old machine gets there.
func (t *Tracker) Remind(ctx context.Context, log logrus.FieldLogger, manager *Systemd) {
	for every := firstReminder; ; every *= 2 {
		if !reconcile.Sleep(ctx, every) {
			return
		}
		reached, missing := t.State()
		if len(missing) == 0 {
			return
		}
		// Twice the time until the next report: a grant that ends with it would be a race.
		manager.patience(reached, 4*every, missing)
		text := fmt.Sprintf("not ready after %s: %s", time.Since(t.begin).Round(time.Second), strings.Join(missing, ", "))
		log.Warn(text)
		t.Printf("%s\n", text)
	}
}

// AwaitStep reports, as Remind does, a step that runs before there are components, until done is called. done may be
// called again.
func AwaitStep(ctx context.Context, step string, out io.Writer, log logrus.FieldLogger, manager *Systemd) (done func()) {
	waiting := New(out, []string{step}, Goal{})
	ctx, cancel := context.WithCancel(ctx)
	var reminding sync.WaitGroup
	reminding.Go(func() { waiting.Remind(ctx, log, manager) })
	return func() { cancel(); reminding.Wait() }
}

// without returns the names that are not among the others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}
