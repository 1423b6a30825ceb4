package shim

import (
	"context"
	"os/exec"
	"sync/atomic"
	"testing"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runcC "github.com/containerd/go-runc"
	runccgroups "github.com/opencontainers/cgroups"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
	"kubelith.io/kubelith/runtime/sandbox"
)

// upstream is a task service that counts what reaches it.
type upstream struct {
	taskAPI.TTRPCTaskService
	shutdowns int
	deletes   int
	kills     int
	state     task.Status // of all containers
}

func (u *upstream) State(context.Context, *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	return &taskAPI.StateResponse{Status: u.state}, nil
}

func (u *upstream) Kill(context.Context, *taskAPI.KillRequest) (*types.Empty, error) {
	u.kills++
	return &types.Empty{}, nil
}

func (u *upstream) Shutdown(context.Context, *taskAPI.ShutdownRequest) (*types.Empty, error) {
	u.shutdowns++
	return &types.Empty{}, nil
}

func (u *upstream) Delete(context.Context, *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	u.deletes++
	return &taskAPI.DeleteResponse{}, nil
}

// noGroup is a cgroup without processes.
type noGroup struct{ runccgroups.Manager }

func (noGroup) GetAllPids() ([]int, error) { return nil, nil }
func (noGroup) Destroy() error             { return nil }

func testService(t *testing.T) (*service, *upstream) {
	_, sd := shutdown.WithShutdown(t.Context())
	u := &upstream{}
	return newService(u, sd), u
}

// add puts a process that sleeps into the service as a sandbox.
func (s *service) add(t *testing.T, id string) (*pod, *exec.Cmd) {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	stat, err := procstat.Read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	b := &pod{
		Record: &sandbox.Record{PID: cmd.Process.Pid, StartTime: stat.Start, Cgroup: &runccgroups.Cgroup{}},
		id:     id, bundle: t.TempDir(), group: noGroup{}, done: make(chan struct{}),
	}
	s.sandbox = b
	return b, cmd
}

// A sandbox goes through its states as containerd expects, and its last one is reported once.
func TestLifeOfASandbox(t *testing.T) {
	s, u := testService(t)
	b, cmd := s.add(t, "a")
	ctx := t.Context()
	state := func() string {
		t.Helper()
		r, err := s.State(ctx, &taskAPI.StateRequest{ID: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status.String()
	}
	if got := state(); got != "CREATED" {
		t.Errorf("state = %s, want CREATED", got)
	}
	if _, err := s.Start(ctx, &taskAPI.StartRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(ctx, &taskAPI.StartRequest{ID: "a"}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("a second start = %v, want a failed precondition", err)
	}
	if got := state(); got != "RUNNING" {
		t.Errorf("state = %s, want RUNNING", got)
	}
	if _, err := s.Delete(ctx, &taskAPI.DeleteRequest{ID: "a"}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Errorf("delete of a running sandbox = %v, want a failed precondition", err)
	}
	if _, err := s.Kill(ctx, &taskAPI.KillRequest{ID: "a", Signal: uint32(unix.SIGKILL)}); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	exits := make(chan runcC.Exit, 2)
	exits <- runcC.Exit{Pid: b.PID, Status: 137, Timestamp: time.Unix(5, 0)}
	exits <- runcC.Exit{Pid: b.PID, Status: 1} // another process with the same pid
	close(exits)
	s.reap(exits)
	if r, err := s.Wait(ctx, &taskAPI.WaitRequest{ID: "a"}); err != nil || r.ExitStatus != 137 || r.ExitedAt.Seconds != 5 {
		t.Errorf("wait = %v, %v, want 137", r, err)
	}
	if got := state(); got != "STOPPED" {
		t.Errorf("state = %s, want STOPPED", got)
	}
	if _, err := s.Kill(ctx, &taskAPI.KillRequest{ID: "a", Signal: 9}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Errorf("kill after the end = %v, want not found", err)
	}
	if e := exitStatus(b.bundle, 0); e.ExitStatus != 137 || e.Pid != b.PID {
		t.Errorf("the bundle has %+v, want the exit status for a later process", e)
	}
	if r, err := s.Delete(ctx, &taskAPI.DeleteRequest{ID: "a"}); err != nil || r.ExitStatus != 137 {
		t.Errorf("delete = %v, %v", r, err)
	}
	if !isDeleted(b.bundle) {
		t.Error("a later shim would not know that there is nothing to clean up")
	}
	if s.get("a") != nil || u.deletes != 0 {
		t.Errorf("the sandbox is still there, or upstream's service was asked (%d)", u.deletes)
	}
	if _, err := s.Delete(ctx, &taskAPI.DeleteRequest{ID: "b"}); err != nil || u.deletes != 1 {
		t.Errorf("a container's delete = %v, reached upstream %d times, want 1", err, u.deletes)
	}
	if n := len(s.events); n != 3 { // start, exit, delete
		t.Errorf("%d events, want 3", n)
	}
}

// A process that ends before the service knows it is not lost.
func TestEarlyExit(t *testing.T) {
	s, _ := testService(t)
	s.mu.Lock() // as create does
	exits := make(chan runcC.Exit)
	go s.reap(exits)
	exits <- runcC.Exit{Pid: 11, Status: 1, Timestamp: time.Unix(5, 0)}
	s.sandbox = &pod{Record: &sandbox.Record{PID: 11}, id: "a", bundle: t.TempDir(), group: noGroup{}, done: make(chan struct{})}
	s.mu.Unlock()
	close(exits)
	if r, err := s.Wait(t.Context(), &taskAPI.WaitRequest{ID: "a"}); err != nil || r.ExitStatus != 1 {
		t.Errorf("wait = %v, %v, want the early exit", r, err)
	}
}

// The shim ends with its last container, and not before its events are sent.
func TestShutdown(t *testing.T) {
	s, u := testService(t)
	s.sandbox = &pod{}
	if _, err := s.Shutdown(t.Context(), &taskAPI.ShutdownRequest{}); err != nil || u.shutdowns != 0 {
		t.Errorf("shutdown = %v: the shim ended while it held a sandbox", err)
	}
	s.sandbox = nil
	s.send(&eventstypes.TaskDelete{ContainerID: "a"})
	p := &publisher{}
	go s.publish(t.Context(), p)
	if _, err := s.Shutdown(t.Context(), &taskAPI.ShutdownRequest{}); err != nil || u.shutdowns != 1 {
		t.Errorf("shutdown = %v: the shim did not end", err)
	}
	if p.published.Load() != 1 {
		t.Error("the shim ended before its last event was out")
	}
}

// publisher takes its time.
type publisher struct {
	shim.Publisher
	published atomic.Int32
}

func (p *publisher) Publish(context.Context, string, events.Event) error {
	time.Sleep(20 * time.Millisecond)
	p.published.Add(1)
	return nil
}

// A pid that another process has by now is not killed.
func TestSignalsOnlyItsOwn(t *testing.T) {
	s, _ := testService(t)
	b, cmd := s.add(t, "a")
	other := *b.Record
	other.StartTime--
	if n, err := other.Signal(nil, unix.SIGKILL); n != 0 || err != nil {
		t.Errorf("signal = %d, %v, want none", n, err)
	}
	if err := cmd.Process.Signal(unix.Signal(0)); err != nil {
		t.Errorf("the other process has ended: %v", err)
	}
	if n, err := b.Signal(nil, 0); n != 1 || err != nil {
		t.Errorf("signal = %d, %v, want the process", n, err)
	}
}
