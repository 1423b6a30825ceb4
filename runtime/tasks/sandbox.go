package tasks

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	runccgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/runtime/sandbox"
)

// pause is the task of a sandbox, with its one process. That is a child of the server that started it, and nobody asks
// how it has ended.
type pause struct {
	base
	process
	*sandbox.Record
	group   runccgroups.Manager
	metrics func() any
}

var _ task = (*pause)(nil)

func newPause(b base, r *sandbox.Record, group runccgroups.Manager) *pause {
	p := &pause{base: b, process: newProcess(), Record: r, group: group}
	p.pid = r.PID
	p.metrics = sync.OnceValue(func() any { return sandbox.Metrics(p.pid) })
	go func() {
		e := awaitEnd(r)
		if e.status < 0 {
			e = killed()
		}
		p.exited(e)
	}()
	return p
}

// createSandbox starts the process of a sandbox, with all that it needs to run.
func createSandbox(_ context.Context, b base) (*pause, error) {
	if err := b.record.write(b.bundle.Path); err != nil {
		return nil, err
	}
	r, group, err := b.manager.starter.Launch(b.bundle.Path, b.spec.Sandbox, b.record.Options.SystemdCgroup)
	if err != nil {
		return nil, err
	}
	p := newPause(b, r, group)
	p.publish(&eventstypes.TaskCreate{
		ContainerID: p.ID(), Bundle: p.bundle.Path, Pid: uint32(r.PID),
		IO: &eventstypes.TaskIO{Stdin: b.record.IO.Stdin, Stdout: b.record.IO.Stdout, Stderr: b.record.IO.Stderr},
	})
	return p, nil
}

// awaitEnd returns when a process has ended. The status is -1 if it is not a child of this server.
func awaitEnd(r *sandbox.Record) exit {
	if fd, err := unix.PidfdOpen(r.PID, 0); err == nil {
		if err := unix.SetNonblock(fd, true); err == nil && isProcess(r) {
			f := os.NewFile(uintptr(fd), "pidfd")
			if c, err := f.SyscallConn(); err == nil {
				_ = c.Read(func(fd uintptr) bool {
					n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
					return n > 0 || err != nil && err != unix.EINTR
				})
			}
			_ = f.Close()
		} else {
			_ = unix.Close(fd)
		}
	}
	for isProcess(r) { // on a kernel without pidfds
		time.Sleep(time.Second)
	}
	var status unix.WaitStatus
	if pid, err := unix.Wait4(r.PID, &status, unix.WNOHANG, nil); err != nil || pid != r.PID {
		return exit{-1, time.Now()}
	}
	if status.Signaled() {
		return exit{128 + int(status.Signal()), time.Now()}
	}
	return exit{status.ExitStatus(), time.Now()}
}

// isProcess reports whether the process of a sandbox runs.
func isProcess(r *sandbox.Record) bool {
	stat, err := procstat.Read(r.PID)
	return err == nil && !stat.Ended() && stat.Start == r.StartTime
}

// exited reports the end of a sandbox, once.
func (p *pause) exited(e exit) {
	if _, err := p.Signal(p.group, unix.SIGKILL); err != nil { // of a process namespace that is not the sandbox's own
		log.L.WithError(err).WithField("id", p.ID()).Error("end the processes of a sandbox")
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return
	}
	p.end(e)
	p.publish(taskExit(p.ID(), p.ID(), p.exit()))
}

// Start implements runtime.Process. The process has been running since Create, which no client can see.
func (p *pause) Start(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running || p.ended != nil {
		return fmt.Errorf("sandbox %s has been started: %w", p.ID(), errdefs.ErrFailedPrecondition)
	}
	p.start()
	p.publish(&eventstypes.TaskStart{ContainerID: p.ID(), Pid: uint32(p.pid)})
	return nil
}

// State implements runtime.Process.
func (p *pause) State(context.Context) (runtime.State, error) { return p.state(p.record.IO), nil }

// PID implements runtime.Task.
func (p *pause) PID(context.Context) (uint32, error) { return uint32(p.pid), nil }

// Wait implements runtime.Process.
func (p *pause) Wait(ctx context.Context) (*runtime.Exit, error) { return p.wait(ctx) }

// Kill implements runtime.Process.
func (p *pause) Kill(_ context.Context, signal uint32, all bool) error {
	select {
	case <-p.done:
		return errFinished
	default:
	}
	group := p.group
	if !all {
		group = nil
	}
	alive, err := p.Signal(group, unix.Signal(signal))
	if err == nil && alive == 0 {
		err = errFinished
	}
	return err
}

// delete implements task.
func (p *pause) delete(ctx context.Context) (*runtime.Exit, error) {
	select {
	case <-p.done:
	default:
		return nil, fmt.Errorf("sandbox %s is running: %w", p.ID(), errdefs.ErrFailedPrecondition)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.End(); err != nil {
		return nil, err
	}
	if err := p.remove(ctx, false); err != nil {
		return nil, err
	}
	return p.deleted(), nil
}

func (p *pause) deleted() *runtime.Exit {
	e := p.exit()
	p.publish(taskDelete(p.ID(), e))
	return e
}

// lost implements task.
func (p *pause) lost(ctx context.Context) { p.once.Do(func() { p.endLost(ctx) }) }

func (p *pause) endLost(ctx context.Context) {
	if err := p.End(); err != nil {
		log.G(ctx).WithError(err).WithField("id", p.ID()).Error("end a sandbox without its keeper")
	}
	p.exited(killed())
	if err := p.remove(ctx, true); err != nil {
		log.G(ctx).WithError(err).WithField("id", p.ID()).Error("remove a sandbox without its keeper")
	}
	p.deleted()
}

// Pids implements runtime.Task.
func (p *pause) Pids(context.Context) ([]runtime.ProcessInfo, error) {
	pids, err := p.group.GetAllPids()
	if err != nil {
		return nil, err
	}
	var list []runtime.ProcessInfo
	for _, pid := range pids {
		list = append(list, runtime.ProcessInfo{Pid: uint32(pid)})
	}
	return list, nil
}

// Stats implements runtime.Task.
func (p *pause) Stats(context.Context) (*ptypes.Any, error) {
	return sandbox.Stats(p.ID(), p.metrics())
}

// What follows is for containers; nobody asks it of a sandbox.

var errSandbox = fmt.Errorf("a sandbox has only its own process: %w", errdefs.ErrNotImplemented)

// ResizePty implements runtime.Process.
func (p *pause) ResizePty(context.Context, runtime.ConsoleSize) error { return errSandbox }

// CloseIO implements runtime.Process.
func (p *pause) CloseIO(context.Context) error { return nil }

// Pause implements runtime.Task.
func (p *pause) Pause(context.Context) error { return errSandbox }

// Resume implements runtime.Task.
func (p *pause) Resume(context.Context) error { return errSandbox }

// Exec implements runtime.Task.
func (p *pause) Exec(context.Context, string, runtime.ExecOpts) (runtime.ExecProcess, error) {
	return nil, errSandbox
}

// Process implements runtime.Task.
func (p *pause) Process(_ context.Context, id string) (runtime.ExecProcess, error) {
	return nil, fmt.Errorf("process %s: %w", id, errdefs.ErrNotFound)
}

// Checkpoint implements runtime.Task.
func (p *pause) Checkpoint(context.Context, string, *ptypes.Any) error { return errSandbox }

// Update implements runtime.Task.
func (p *pause) Update(context.Context, *ptypes.Any, map[string]string) error { return errSandbox }
