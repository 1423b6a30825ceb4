package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// execution is a process that is executed in a container. Nobody asks for one after a restart of the server: the
// streams of its client have ended with the server before.
type execution struct {
	process
	container *container
	id        string
	io        runtime.IO
	spec      specs.Process
	kept      *kept // nil before it is started
}

var _ runtime.ExecProcess = (*execution)(nil)

// ID implements runtime.Process.
func (e *execution) ID() string { return e.id }

func (e *execution) file(name string) string {
	return filepath.Join(e.container.bundle.Path, e.id+name)
}

// Start implements runtime.Process.
func (e *execution) Start(ctx context.Context) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kept != nil || e.ended != nil {
		return fmt.Errorf("process %s has been started: %w", e.id, errdefs.ErrFailedPrecondition)
	}
	c := e.container
	s, err := c.open(ctx, e.io)
	if err != nil {
		e.end(killed()) // nobody waits for it
		return err
	}
	defer s.close()
	c.execMu.Lock()
	if c.execs == nil {
		c.execMu.Unlock()
		return fmt.Errorf("container %s has ended: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	c.started.Add(1)
	c.execMu.Unlock()
	content, err := json.Marshal(e.spec)
	if err == nil {
		err = os.WriteFile(e.file(".json"), content, 0o600)
	}
	if err != nil {
		c.started.Done()
		return err
	}
	e.kept = c.pod.hold()
	args := []string{"exec", "--detach", "--process", e.file(".json")}
	pid, err := c.leaveBehind(ctx, e.kept, s, "OCI runtime exec failed", e.file(".pid"), args, c.ID())
	_ = os.Remove(e.file(".json"))
	if err != nil {
		c.pod.forget(e.kept)
		e.end(killed()) // nobody waits for it
		c.started.Done()
		return err
	}
	e.data.Lock()
	e.pid, e.running = pid, true
	e.data.Unlock()
	c.publish(&eventstypes.TaskExecStarted{ContainerID: c.ID(), ExecID: e.id, Pid: uint32(pid)})
	go func() {
		defer c.started.Done()
		select {
		case x := <-e.kept.exited:
			e.exited(x)
		case <-c.pod.gone:
			e.exited(killed())
		}
	}()
	return nil
}

func (e *execution) exited(x exit) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end(x)
	e.container.publish(taskExit(e.container.ID(), e.id, e.exit()))
}

// State implements runtime.Process.
func (e *execution) State(context.Context) (runtime.State, error) { return e.state(e.io), nil }

// Wait implements runtime.Process.
func (e *execution) Wait(ctx context.Context) (*runtime.Exit, error) { return e.wait(ctx) }

// Kill implements runtime.Process.
func (e *execution) Kill(_ context.Context, signal uint32, _ bool) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.ended != nil:
		return errFinished
	case e.pid == 0:
		return fmt.Errorf("process %s has not been started: %w", e.id, errdefs.ErrFailedPrecondition)
	}
	return killError(unix.Kill(e.pid, unix.Signal(signal)))
}

// ResizePty implements runtime.Process.
func (e *execution) ResizePty(_ context.Context, size runtime.ConsoleSize) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kept == nil {
		return nil
	}
	return e.container.pod.resize(e.kept, size.Width, size.Height)
}

// CloseIO implements runtime.Process.
func (e *execution) CloseIO(context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kept == nil {
		return nil
	}
	return e.container.pod.closeStdin(e.kept)
}

// Delete implements runtime.ExecProcess.
func (e *execution) Delete(ctx context.Context) (*runtime.Exit, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running && e.ended == nil {
		return nil, fmt.Errorf("process %s has not ended: %w", e.id, errdefs.ErrFailedPrecondition)
	}
	c := e.container
	if e.running {
		drain(ctx, c.pod, e.kept, e.id)
		c.pod.forget(e.kept)
	}
	_ = os.Remove(e.file(".pid"))
	c.execMu.Lock()
	delete(c.execs, e.id)
	delete(c.ending, e.id)
	c.execMu.Unlock()
	if e.ended == nil {
		return &runtime.Exit{}, nil
	}
	return e.exit(), nil
}
