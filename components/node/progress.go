package node

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
	"kubelith.io/kubelith/base/logging"
)

// goal is when a server or an agent has started.
type goal struct {
	role    string        // what is started, shown to the user
	needed  []string      // the components that must be ready; the others are reported, and not waited for
	reached string        // shown to the user then
	next    func() string // what to do next, shown when everything is ready; may be nil
}

// progress counts the ready components and reports to the user.
type progress struct {
	out   io.Writer
	goal  goal
	begin time.Time

	mu      sync.Mutex
	all     []string
	ready   []string
	reached bool // every needed component has been ready
}

func newProgress(out io.Writer, components []lifecycle.Component, goal goal) *progress {
	return &progress{out: out, goal: goal, begin: time.Now(), all: namesOf(components)}
}

func (p *progress) observe(e lifecycle.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e.State {
	case lifecycle.Ready:
		if slices.Contains(p.ready, e.Component) {
			return // it was restarted
		}
		p.ready = append(p.ready, e.Component)
		p.printf("%-20s ready   %6.2fs\n", e.Component, e.Since.Seconds())
		missing := without(p.all, p.ready)
		if !p.reached && len(without(p.goal.needed, p.ready)) == 0 {
			p.reached = true
			p.printf("%-20s ready   %6.2fs   %s\n", "kubelith", time.Since(p.begin).Seconds(), p.goal.reached)
			if len(missing) > 0 {
				p.printf("still starting: %s\n", strings.Join(missing, ", "))
			}
		}
		if len(missing) == 0 && p.goal.next != nil {
			p.printf("%s", p.goal.next())
		}
	case lifecycle.Stopped:
		p.printf("%-20s stopped\n", e.Component)
	case lifecycle.Failed: // the reason is the last line on stderr
		p.printf("%-20s failed  %6.2fs\n", e.Component, e.Since.Seconds())
	}
}

func (p *progress) printf(format string, a ...any) {
	if p.out != nil {
		fmt.Fprintf(p.out, format, a...)
	}
}

// state reports whether every needed component is ready, and which components are not.
func (p *progress) state() (reached bool, missing []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reached, without(p.all, p.ready)
}

// firstReminder is the time until a slow start first reports what it waits for.
const firstReminder = 30 * time.Second

// remind reports what the start waits for, at growing intervals, until nothing is missing or ctx ends. There is no
// limit: a slow disk or an old machine gets there.
func (p *progress) remind(ctx context.Context, log logrus.FieldLogger, manager *systemd) {
	for every := firstReminder; ; every *= 2 {
		select {
		case <-time.After(every):
		case <-ctx.Done():
			return
		}
		reached, missing := p.state()
		if len(missing) == 0 {
			return
		}
		// Twice the time until the next report: a grant that ends with it would be a race.
		manager.patience(reached, 4*every, missing)
		text := fmt.Sprintf("not ready after %s: %s", time.Since(p.begin).Round(time.Second), strings.Join(missing, ", "))
		log.Warn(text)
		p.printf("%s\n", text)
	}
}

// awaitStep reports, as remind does, a step that runs before there are components, until done is called. done may be
// called again.
func (p *process) awaitStep(ctx context.Context, step string) (done func()) {
	waiting := &progress{out: p.out.person(), begin: time.Now(), all: []string{step}}
	ctx, cancel := context.WithCancel(ctx)
	var reminding sync.WaitGroup
	reminding.Go(func() { waiting.remind(ctx, logging.Component(p.log, "kubelith"), p.systemd) })
	return func() { cancel(); reminding.Wait() }
}

// without returns the names that are not among the others.
func without(names, others []string) []string {
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(others, name) })
}
