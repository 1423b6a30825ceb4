// Package faults lets tests (integration/restart) break the components of a running process.
package faults

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"kubelith.io/kubelith/base/lifecycle"
)

// variable names a unix socket through which tests break components. Without it, as in any installation, nothing in
// this package runs: a user who may set the environment of this process, which is root's, can harm it without faults.
// The socket is root's too.
const variable = "KUBELITH_TEST_FAULTS"

// Injector lets tests break the components that are restarted. The line "list" on the socket is answered with their
// names, a line "NAME FAULT" with "ok" or the error. The faults are
//
//	error, end, panic: Run does so
//	goroutine: one of its goroutines panics
//	crash: a goroutine without HandleCrash panics
//	hang: Healthy fails until the run is ended
//	stuck: it hangs, and its Run does not return
//	release: all stuck runs return
//
// A nil Injector, of a process that is not under test, leaves everything as it is.
type Injector struct {
	listener net.Listener
	set      map[string]chan string
	release  chan struct{}
}

// Open returns nil unless the process is under test.
func Open() (*Injector, error) {
	path := os.Getenv(variable)
	if path == "" {
		return nil, nil
	}
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", variable, err)
	}
	return &Injector{listener: l, set: map[string]chan string{}, release: make(chan struct{})}, os.Chmod(path, 0o600)
}

// Timing detects a hang within seconds.
func (f *Injector) Timing() lifecycle.Timing {
	if f == nil {
		return lifecycle.Timing{}
	}
	return lifecycle.Timing{First: 200 * time.Millisecond, Longest: time.Second,
		AskEvery: 500 * time.Millisecond, HangAfter: 3 * time.Second, EndWithin: 10 * time.Second}
}

// FirstHold brings back a component that was left out within seconds; 0 without a test (crashes.BreakLoops).
func (f *Injector) FirstHold() time.Duration {
	if f == nil {
		return 0
	}
	return 20 * time.Second
}

// Wrap lets a test break the components that are restarted.
func (f *Injector) Wrap(components []lifecycle.Component) []lifecycle.Component {
	if f == nil {
		return components
	}
	var out []lifecycle.Component
	for _, c := range components {
		if lifecycle.PolicyOf(c) != lifecycle.EndProcess {
			f.set[c.Name()] = make(chan string)
			c = &faulty{Component: c, set: f.set[c.Name()], release: f.release}
		}
		out = append(out, c)
	}
	return out
}

// Serve takes lines until ctx ends.
func (f *Injector) Serve(ctx context.Context) {
	if f == nil {
		return
	}
	context.AfterFunc(ctx, func() { f.listener.Close() })
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return
		}
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			answer := "ok"
			if line := lines.Text(); line == "list" {
				answer = strings.Join(slices.Sorted(maps.Keys(f.set)), " ")
			} else if err := f.do(line); err != nil {
				answer = err.Error()
			}
			fmt.Fprintln(conn, answer)
		}
		conn.Close()
	}
}

func (f *Injector) do(line string) error {
	name, fault, _ := strings.Cut(line, " ")
	if fault == "release" {
		close(f.release)
		return nil
	}
	set, ok := f.set[name]
	if !ok {
		return fmt.Errorf("no component %q", name)
	}
	select {
	case set <- fault:
		return nil
	case <-time.After(10 * time.Second):
		return fmt.Errorf("%s is not running", name)
	}
}

// faulty is a component that a test can break.
type faulty struct {
	lifecycle.Component
	set     <-chan string
	release <-chan struct{}
	hung    atomic.Bool
}

// RestartPolicy implements lifecycle.Restarter.
func (c *faulty) RestartPolicy() lifecycle.Policy { return lifecycle.PolicyOf(c.Component) }

// Healthy implements lifecycle.Health.
func (c *faulty) Healthy(ctx context.Context) error {
	if c.hung.Load() {
		<-ctx.Done()
		return errors.New("a test made it hang")
	}
	return lifecycle.HealthOf(ctx, c.Component)
}

// Run implements lifecycle.Component.
func (c *faulty) Run(ctx context.Context, ready func()) error {
	c.hung.Store(false)
	inner, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var err error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = errors.New("its goroutine called runtime.Goexit")
		err = c.Component.Run(inner, ready)
	}()
	stuck := false
	for {
		select {
		case <-ended:
			if stuck {
				<-c.release
			}
			return err
		case fault := <-c.set:
			switch fault {
			case "goroutine":
				go func() {
					defer utilruntime.HandleCrash()
					panic("a test")
				}()
			case "crash":
				go func() { panic("a test") }()
			case "hang", "stuck":
				stuck = fault == "stuck"
				c.hung.Store(true)
			default: // like a panic in Run itself, it ends what Run started first
				cancel(lifecycle.ErrRestarting)
				<-ended
				return broken(fault)
			}
		}
	}
}

func broken(fault string) error {
	switch fault {
	case "panic":
		panic("a test")
	case "end":
		return nil
	}
	return errors.New("a test")
}
