package node

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

// faultsVariable names a unix socket through which tests break components. Without it, as in any installation, nothing
// in this file runs: a user who may set the environment of this process, which is root's, can harm it without faults.
// The socket is root's too.
const faultsVariable = "KUBELITH_TEST_FAULTS"

// faults lets tests break the components that are restarted. The line "list" on the socket is answered with their
// names, a line "NAME FAULT" with "ok" or the error. The faults are
//
//	error, end, panic: Run does so
//	goroutine: one of its goroutines panics
//	crash: a goroutine without HandleCrash panics
//	hang: Healthy fails until the run is ended
//	stuck: it hangs, and its Run does not return
//	release: all stuck runs return
type faults struct {
	listener net.Listener
	set      map[string]chan string
	release  chan struct{}
}

// openFaults returns nil unless the process is under test.
func openFaults() (*faults, error) {
	path := os.Getenv(faultsVariable)
	if path == "" {
		return nil, nil
	}
	os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", faultsVariable, err)
	}
	return &faults{listener: l, set: map[string]chan string{}, release: make(chan struct{})}, os.Chmod(path, 0o600)
}

// timing detects a hang within seconds.
func (f *faults) timing() lifecycle.Timing {
	if f == nil {
		return lifecycle.Timing{}
	}
	return lifecycle.Timing{First: 200 * time.Millisecond, Longest: time.Second,
		AskEvery: 500 * time.Millisecond, HangAfter: 3 * time.Second, EndWithin: 10 * time.Second}
}

// firstHold brings back a component that was left out within seconds.
func (f *faults) firstHold() time.Duration {
	if f == nil {
		return firstHold
	}
	return 20 * time.Second
}

// wrap lets a test break the components that are restarted.
func (f *faults) wrap(components []lifecycle.Component) []lifecycle.Component {
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

// serve takes lines until ctx ends.
func (f *faults) serve(ctx context.Context) {
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

func (f *faults) do(line string) error {
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
