package tasks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/cgroups/v3"
	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/identifiers"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/runtime/sandbox"
)

const (
	// drainTimeout is how long a process that has ended is waited for with what it has written. Another process may
	// have its output open. It is half of what CRI gives to the end of a container.
	drainTimeout = 5 * time.Second
	// consoleTimeout is how long runc may take to hand over a terminal. Source: containerd,
	// cmd/containerd-shim-runc-v2/process/init.go.
	consoleTimeout = 30 * time.Second
	// readerTimeout is how long a process waits for a reader of its output before it is started. Source: containerd,
	// cmd/containerd-shim-runc-v2/process/exec.go.
	readerTimeout = 30 * time.Second
	// creationTimeout is how long runc may go on with containers of the server before.
	creationTimeout = 10 * time.Second
	// cleanupTimeout is how long the end of what is left of a container may take.
	cleanupTimeout = time.Minute
)

// container is a task that runc has made.
type container struct {
	base
	process
	kept    *kept
	runc    *runc.Runc
	pidfd   int         // of the first process; -1: it had ended, or shares process IDs with others
	metrics func() any  // see sandbox.Metrics
	watch   int32       // of outOfMemory; 0: none
	oom     atomic.Bool // it is known that it has run out of memory

	execMu  sync.Mutex
	execs   map[string]*execution // nil after the end
	ending  map[string]*execution // those of a container that has ended
	started sync.WaitGroup        // executions that have been started and not ended
}

var _ task = (*container)(nil)

func newContainer(b base) *container {
	c := &container{base: b, process: newProcess(), runc: newRunc(b.bundle, b.record.Options), pidfd: -1, execs: map[string]*execution{}}
	c.metrics = sync.OnceValue(func() any { return sandbox.Metrics(c.pid) })
	return c
}

func newRunc(bundle *v2.Bundle, o *options.Options) *runc.Runc {
	return &runc.Runc{
		Command:       o.BinaryName,
		Log:           filepath.Join(bundle.Path, "log.json"),
		LogFormat:     runc.JSON,
		Root:          filepath.Join(o.Root, bundle.Namespace),
		SystemdCgroup: o.SystemdCgroup,
	}
}

func (c *container) rootfs() string { return filepath.Join(c.bundle.Path, "rootfs") }

// createContainer makes a container, whose first process waits for Start.
func createContainer(ctx context.Context, b base, mounts []mount.Mount) (_ *container, err error) {
	o := b.record.Options
	if o.Root == "" || o.BinaryName == "" {
		return nil, fmt.Errorf("the runtime has no program or no directory: %w", errdefs.ErrInvalidArgument)
	}
	c := newContainer(b)
	if err := errors.Join(sandbox.ForCrun(b.bundle.Path, o.BinaryName), sandbox.KeepVolumeFlags(b.bundle.Path, b.spec.Mounts, unix.Statfs)); err != nil {
		return nil, err
	}
	s, err := c.open(ctx, c.record.IO)
	if err != nil {
		return nil, err
	}
	defer s.close()
	c.kept = c.pod.hold()
	c.record.Key = c.kept.key
	c.countKills()
	if err := c.record.write(c.bundle.Path); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.pod.forget(c.kept)
			if left := mount.UnmountRecursive(c.rootfs(), 0); left != nil {
				err = errors.Join(err, left)
			}
		}
	}()
	if err := mount.All(mounts, c.rootfs()); err != nil {
		return nil, fmt.Errorf("mount the root directory: %w", err)
	}
	args := []string{"create", "--bundle", c.bundle.Path}
	if o.NoPivotRoot {
		args = append(args, "--no-pivot")
	}
	if o.NoNewKeyring {
		args = append(args, "--no-new-keyring")
	}
	pid, err := c.leaveBehind(ctx, c.kept, s, "OCI runtime create failed", filepath.Join(c.bundle.Path, "init.pid"), args, c.ID())
	if err != nil {
		_ = c.runc.Delete(context.WithoutCancel(ctx), c.ID(), &runc.DeleteOpts{Force: true}) // what there is of it
		return nil, err
	}
	c.created(pid)
	c.publish(&eventstypes.TaskCreate{
		ContainerID: c.ID(), Bundle: c.bundle.Path, Pid: uint32(pid), Rootfs: mount.ToProto(mounts),
		IO: &eventstypes.TaskIO{Stdin: c.record.IO.Stdin, Stdout: c.record.IO.Stdout, Stderr: c.record.IO.Stderr, Terminal: c.record.IO.Terminal},
	})
	return c, nil
}

// created begins to wait for the end of the first process.
func (c *container) created(pid int) {
	c.pid = pid
	ended := len(c.kept.exited) > 0 // the pid may be another's by now
	if c.record.OwnPIDs && !ended {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			c.pidfd = fd
		}
	}
	c.pod.kills.Store(max(c.pod.kills.Load(), c.record.PodKills))
	if !ended {
		c.manager.oom.add(c)
	}
	go func() {
		select {
		case e := <-c.kept.exited:
			c.exited(e)
		case <-c.pod.gone: // see lost
		}
	}()
}

// open opens the streams of a process.
func (c *container) open(ctx context.Context, io runtime.IO) (*streams, error) {
	ctx, cancel := context.WithTimeout(ctx, readerTimeout)
	defer cancel()
	return openStreams(ctx, io, c.record.Options.IoUid, c.record.Options.IoGid)
}

// leaveBehind runs runc, whose container or process is p's. It returns the pid in pidFile.
func (c *container) leaveBehind(ctx context.Context, p *kept, s *streams, failed, pidFile string, args []string, last ...string) (_ int, err error) {
	args = append(args, "--pid-file", pidFile)
	start := s
	var socket *runc.Socket
	if s.terminal {
		if socket, err = runc.NewTempConsoleSocket(); err != nil {
			return 0, fmt.Errorf("the socket for a terminal: %w", err)
		}
		defer socket.Close()
		args = append(args, "--console-socket", socket.Path())
		start = &streams{} // the terminal's, once it is there
	}
	global := []string{c.runc.Command, "--root", c.runc.Root, "--log", c.runc.Log, "--log-format", string(c.runc.LogFormat)}
	if c.record.Options.SystemdCgroup {
		global = append(global, "--systemd-cgroup")
	}
	var master chan terminal
	if socket != nil {
		master = make(chan terminal, 1)
		go func() { master <- receive(socket) }() // runc waits until it has been taken
	}
	if s.flags&(flagStdout|flagStderr) == 0 {
		p.drain()
	}
	status, err := c.pod.run(ctx, p, start, append(append(global, args...), last...))
	if err == nil && status != 0 {
		err = fmt.Errorf("exit status %d", status)
	}
	if err != nil {
		return 0, c.failed(failed, err)
	}
	if socket != nil {
		if err := c.connect(p, master, s); err != nil {
			return 0, err
		}
	}
	pid, err := runc.ReadPidFile(pidFile)
	if err != nil {
		return 0, fmt.Errorf("the runtime has not reported a process: %w", err)
	}
	return pid, c.pod.watch(p, pid)
}

type terminal struct {
	fd    uintptr
	close func() error
	err   error
}

func receive(socket *runc.Socket) terminal {
	console, err := socket.ReceiveMaster()
	if err != nil {
		return terminal{err: fmt.Errorf("receive a terminal: %w", err)}
	}
	return terminal{console.Fd(), console.Close, nil}
}

// connect passes a terminal to the keeper.
func (c *container) connect(p *kept, master chan terminal, s *streams) error {
	select {
	case t := <-master:
		if t.err != nil {
			return t.err
		}
		defer t.close()
		return c.pod.console(p, int(t.fd), s)
	case <-time.After(consoleTimeout):
		return errors.New("the runtime has not handed over a terminal")
	}
}

// failed returns an error of runc as runc has logged it.
func (c *container) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	if said := lastError(c.runc.Log); said != "" {
		return fmt.Errorf("%s: %s", what, said)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// lastError returns the last error in a log of runc, "" if there is none.
func lastError(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	var last string
	for lines := json.NewDecoder(f); ; {
		var line struct{ Level, Msg string }
		if err := lines.Decode(&line); err != nil {
			if !errors.Is(err, io.EOF) {
				return ""
			}
			return last
		}
		if line.Level == "error" {
			last = strings.TrimSpace(line.Msg)
		}
	}
}

// exited reports the end of a container: after that of what was executed in it, and of its start.
func (c *container) exited(e exit) {
	ctx := context.Background()
	if !c.record.OwnPIDs {
		c.mu.Lock() // its start is over
		err := c.runc.Kill(ctx, c.ID(), int(unix.SIGKILL), &runc.KillOpts{All: true})
		c.mu.Unlock()
		if err != nil && !errdefs.IsNotFound(killError(err)) {
			log.L.WithError(err).WithField("id", c.ID()).Error("end the processes of a container")
		}
	}
	c.execMu.Lock()
	c.execs, c.ending = nil, c.execs // none starts from now on
	c.execMu.Unlock()
	c.started.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return
	}
	if c.record.Paused { // runc does not remove a group that is frozen
		if err := c.runc.Resume(ctx, c.ID()); err != nil {
			log.L.WithError(err).WithField("id", c.ID()).Error("thaw a container that has ended")
		}
	}
	c.checkEnd(e)
	c.end(e)
	c.publish(taskExit(c.ID(), c.ID(), c.exit()))
}

// Start implements runtime.Process.
func (c *container) Start(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.running || c.ended != nil {
		return fmt.Errorf("container %s has been started: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	if err := c.runc.Start(ctx, c.ID()); err != nil {
		return c.failed("OCI runtime start failed", err)
	}
	c.start()
	c.publish(&eventstypes.TaskStart{ContainerID: c.ID(), Pid: uint32(c.pid)})
	return nil
}

// State implements runtime.Process.
func (c *container) State(context.Context) (runtime.State, error) {
	s := c.state(c.record.IO)
	c.data.Lock()
	defer c.data.Unlock()
	if c.record.Paused && s.Status == runtime.RunningStatus {
		s.Status = runtime.PausedStatus
	}
	return s, nil
}

// PID implements runtime.Task.
func (c *container) PID(context.Context) (uint32, error) { return uint32(c.pid), nil }

// Wait implements runtime.Process.
func (c *container) Wait(ctx context.Context) (*runtime.Exit, error) { return c.wait(ctx) }

// Kill implements runtime.Process. To start runc only for a signal takes 6 ms of CPU. So a running container with its
// own process IDs gets its signal from here; one that has ended gets none, which containerd sends to whatever may be
// left of it. Where there is more to do, runc does it: it kills a container that shares process IDs one by one, and on
// cgroup v1 it thaws what SIGKILL cannot end while it is frozen.
//
// Source: runc, libcontainer/container_linux.go: Container.Signal.
func (c *container) Kill(ctx context.Context, number uint32, all bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	signal := unix.Signal(number)
	if c.record.OwnPIDs && c.pidfd >= 0 {
		switch {
		case c.ended != nil:
			return errFinished
		case c.running && !c.record.Paused && !all && (signal != unix.SIGKILL || cgroups.Mode() == cgroups.Unified):
			return killError(unix.PidfdSendSignal(c.pidfd, signal, nil, 0))
		}
	}
	return killError(c.runc.Kill(ctx, c.ID(), int(number), &runc.KillOpts{All: all}))
}

// killError returns an error of kill(2), or of runc, as containerd expects it.
//
// Source: containerd, cmd/containerd-shim-runc-v2/process/utils.go: checkKillError.
func killError(err error) error {
	if err == nil {
		return nil
	}
	text := strings.ToLower(err.Error())
	for _, gone := range []string{"process already finished", "container not running", "no such process"} {
		if errors.Is(err, unix.ESRCH) || strings.Contains(text, gone) {
			return errFinished
		}
	}
	if strings.Contains(text, "does not exist") {
		return fmt.Errorf("no such container: %w", errdefs.ErrNotFound)
	}
	return fmt.Errorf("signal a container: %w", err)
}

// delete implements task.
func (c *container) delete(ctx context.Context) (*runtime.Exit, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		return nil, fmt.Errorf("container %s has not ended: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	drain(ctx, c.pod, c.kept, c.ID())
	if err := deleteIfThere(ctx, c.runc, c.ID(), nil); err != nil {
		return nil, c.failed("failed to delete task", err)
	}
	c.pod.forget(c.kept)
	c.release()
	if err := c.remove(ctx, false); err != nil {
		return nil, err
	}
	e := c.exit()
	c.publish(taskDelete(c.ID(), e))
	return e, nil
}

// deleteIfThere deletes what runc has of a container.
func deleteIfThere(ctx context.Context, r *runc.Runc, id string, o *runc.DeleteOpts) error {
	err := r.Delete(ctx, id, o)
	if err != nil && strings.Contains(err.Error(), "does not exist") {
		return nil
	}
	return err
}

// drain waits until the output of a process that has ended has been passed on.
func drain(ctx context.Context, p *pod, k *kept, id string) {
	timeout := time.NewTimer(drainTimeout)
	defer timeout.Stop()
	select {
	case <-k.drained:
	case <-p.gone:
	case <-ctx.Done():
	case <-timeout.C:
		log.G(ctx).WithField("id", id).Warn("the output of an ended process stays open")
	}
}

// release lets go of what the kernel keeps for the container.
func (c *container) release() {
	c.manager.oom.remove(c)
	if c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
		c.pidfd = -1
	}
}

// lost implements task.
func (c *container) lost(ctx context.Context) { c.once.Do(func() { c.endLost(ctx) }) }

func (c *container) endLost(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	if err := deleteIfThere(ctx, c.runc, c.ID(), &runc.DeleteOpts{Force: true}); err != nil {
		log.G(ctx).WithError(err).WithField("id", c.ID()).Error("end a container without its keeper")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended == nil {
		c.end(killed())
		c.publish(taskExit(c.ID(), c.ID(), c.exit()))
	}
	c.release()
	if err := c.remove(ctx, true); err != nil {
		log.G(ctx).WithError(err).WithField("id", c.ID()).Error("remove a container without its keeper")
	}
	e := c.exit()
	c.publish(taskDelete(c.ID(), e))
}

// ResizePty implements runtime.Process.
func (c *container) ResizePty(_ context.Context, size runtime.ConsoleSize) error {
	return c.pod.resize(c.kept, size.Width, size.Height)
}

// CloseIO implements runtime.Process.
func (c *container) CloseIO(context.Context) error { return c.pod.closeStdin(c.kept) }

// Pause implements runtime.Task.
func (c *container) Pause(ctx context.Context) error {
	return c.pause(ctx, true, c.runc.Pause, "OCI runtime pause failed", &eventstypes.TaskPaused{ContainerID: c.ID()})
}

// Resume implements runtime.Task.
func (c *container) Resume(ctx context.Context) error {
	return c.pause(ctx, false, c.runc.Resume, "OCI runtime resume failed", &eventstypes.TaskResumed{ContainerID: c.ID()})
}

func (c *container) pause(ctx context.Context, paused bool, do func(context.Context, string) error, failed string, event any) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || c.ended != nil || c.record.Paused == paused {
		return fmt.Errorf("container %s is not in a state for it: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	if err := do(ctx, c.ID()); err != nil {
		return c.failed(failed, err)
	}
	c.data.Lock()
	c.record.Paused = paused
	c.data.Unlock()
	c.publish(event)
	return c.record.write(c.bundle.Path)
}

// Pids implements runtime.Task.
func (c *container) Pids(context.Context) ([]runtime.ProcessInfo, error) {
	pids, err := pidsOf(c.ID(), c.metrics())
	c.execMu.Lock()
	defer c.execMu.Unlock()
	for i := range pids {
		for _, e := range c.execs {
			if s := e.state(e.io); s.Pid != 0 && s.Pid == pids[i].Pid {
				pids[i].Info = &options.ProcessDetails{ExecID: e.id}
			}
		}
	}
	return pids, err
}

// Stats implements runtime.Task.
func (c *container) Stats(context.Context) (*ptypes.Any, error) {
	return sandbox.Stats(c.ID(), c.metrics())
}

// Update implements runtime.Task.
func (c *container) Update(ctx context.Context, resources *ptypes.Any, _ map[string]string) error {
	var r specs.LinuxResources
	if err := json.Unmarshal(resources.GetValue(), &r); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return fmt.Errorf("container %s has ended: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	return c.runc.Update(ctx, c.ID(), &r)
}

// Checkpoint implements runtime.Task.
func (c *container) Checkpoint(ctx context.Context, path string, request *ptypes.Any) error {
	var o options.CheckpointOptions
	if request != nil {
		if err := typeurl.UnmarshalTo(request, &o); err != nil {
			return err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.running || c.ended != nil {
		return fmt.Errorf("container %s does not run: %w", c.ID(), errdefs.ErrFailedPrecondition)
	}
	var actions []runc.CheckpointAction
	if !o.Exit {
		actions = append(actions, runc.LeaveRunning)
	}
	work := o.WorkPath
	if work == "" {
		work = filepath.Join(c.bundle.Path, "work", "criu-work")
		defer os.RemoveAll(work)
	}
	err := c.runc.Checkpoint(ctx, c.ID(), &runc.CheckpointOpts{
		WorkDir: work, ImagePath: path, AllowOpenTCP: o.OpenTcp, AllowExternalUnixSockets: o.ExternalUnixSockets, AllowTerminal: o.Terminal,
		FileLocks: o.FileLocks, EmptyNamespaces: o.EmptyNamespaces, ParentPath: o.ParentPath,
	}, actions...)
	if err == nil {
		return nil
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	dump := filepath.Join(c.bundle.Path, "criu-dump.log")
	if content, failed := os.ReadFile(filepath.Join(work, "dump.log")); failed == nil {
		_ = os.WriteFile(dump, content, 0o600)
	}
	return fmt.Errorf("%s path= %s", first, dump)
}

// Exec implements runtime.Task.
func (c *container) Exec(_ context.Context, id string, o runtime.ExecOpts) (runtime.ExecProcess, error) {
	if err := identifiers.Validate(id); err != nil {
		return nil, fmt.Errorf("invalid exec id %s: %w", id, err)
	}
	var spec specs.Process
	if err := json.Unmarshal(o.Spec.GetValue(), &spec); err != nil {
		return nil, err
	}
	spec.Terminal = o.IO.Terminal
	e := &execution{process: newProcess(), container: c, id: id, io: o.IO, spec: spec}
	c.execMu.Lock()
	defer c.execMu.Unlock()
	switch {
	case c.execs == nil:
		return nil, fmt.Errorf("container %s has ended: %w", c.ID(), errdefs.ErrFailedPrecondition)
	case c.execs[id] != nil:
		return nil, fmt.Errorf("id %s: %w", id, errdefs.ErrAlreadyExists)
	}
	c.execs[id] = e
	c.publish(&eventstypes.TaskExecAdded{ContainerID: c.ID(), ExecID: id})
	return e, nil
}

// Process implements runtime.Task.
func (c *container) Process(_ context.Context, id string) (runtime.ExecProcess, error) {
	c.execMu.Lock()
	defer c.execMu.Unlock()
	for _, of := range []map[string]*execution{c.execs, c.ending} {
		if e := of[id]; e != nil {
			return e, nil
		}
	}
	return nil, fmt.Errorf("process %s: %w", id, errdefs.ErrNotFound)
}
