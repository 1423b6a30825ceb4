package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	containerdruntime "github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runcC "github.com/containerd/go-runc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	runccgroups "github.com/opencontainers/cgroups"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/names"
	"kubelith.io/kubelith/runtime/sandbox"
)

// service is containerd's task API: for sandboxes it answers itself, for containers upstream's service does.
type service struct {
	taskAPI.TTRPCTaskService

	containers *containers
	starter    *sandbox.Starter
	shutdown   shutdown.Service
	events     chan any // nil requests flushed, which confirms that all before it are out
	flushed    chan struct{}

	mu      sync.Mutex // held while the sandbox's process starts, so that its exit is reported after its creation
	sandbox *pod       // nil before it is created and after it is deleted
}

// pod is a pod's sandbox, with its one process.
type pod struct {
	*sandbox.Record
	id, bundle string
	group      runccgroups.Manager
	metrics    func() any    // of containerd's cgroup libraries, nil where there is no cgroup
	done       chan struct{} // closed when exit is there

	// Guarded by the service's mutex.
	running bool
	exit    runcC.Exit
}

func newService(upstream taskAPI.TTRPCTaskService, sd shutdown.Service) *service {
	return &service{
		TTRPCTaskService: upstream,
		containers:       newContainers(),
		starter:          sandbox.NewStarter(beside(names.PauseProgram)),
		shutdown:         sd,
		events:           make(chan any, 128),
		flushed:          make(chan struct{}),
	}
}

// beside returns the path of a program in the directory of this one.
func beside(name string) string {
	program, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(program), name)
}

// run does what no call asks for, until the shim ends.
func (s *service) run(ctx context.Context, publisher shim.Publisher) {
	go s.publish(context.WithoutCancel(ctx), publisher)
	s.reap(reaper.Default.Subscribe())
}

// RegisterTTRPC adds the service to a server.
func (s *service) RegisterTTRPC(server *ttrpc.Server) error {
	taskAPI.RegisterTTRPCTaskService(server, s)
	return nil
}

// publish sends events in the order in which they happened.
func (s *service) publish(ctx context.Context, publisher shim.Publisher) {
	for {
		select {
		case event := <-s.events:
			if event == nil {
				s.flushed <- struct{}{}
				continue
			}
			if err := publisher.Publish(ctx, containerdruntime.GetTopic(event), event); err != nil {
				log.G(ctx).WithError(err).Error("publish an event")
			}
		case <-s.shutdown.Done():
			return
		}
	}
}

func (s *service) send(event any) {
	select {
	case s.events <- event:
	case <-s.shutdown.Done():
	}
}

// reap takes the exits of all children of the shim, those of upstream's service among them.
func (s *service) reap(exits <-chan runcC.Exit) {
	for exit := range exits {
		s.mu.Lock()
		b := s.sandbox
		ended := b != nil && b.PID == exit.Pid && b.exit.Pid == 0
		s.mu.Unlock()
		if ended {
			s.exited(b, exit)
		}
	}
}

// exited reports the end of a sandbox, once.
func (s *service) exited(b *pod, exit runcC.Exit) {
	if _, err := b.Signal(b.group, unix.SIGKILL); err != nil { // of a process namespace that is not the sandbox's own
		log.L.WithError(err).WithField("id", b.id).Error("end the processes of a sandbox")
	}
	if err := runc.WriteExitStatus(b.bundle, exit); err != nil {
		log.L.WithError(err).WithField("id", b.id).Error("store the exit status of a sandbox")
	}
	s.mu.Lock()
	b.exit = exit
	s.mu.Unlock()
	close(b.done)
	s.send(&eventstypes.TaskExit{
		ContainerID: b.id, ID: b.id, Pid: uint32(b.PID), ExitStatus: uint32(exit.Status), ExitedAt: protobuf.ToTimestamp(exit.Timestamp),
	})
}

// get returns nil for what upstream's service has, and for unknown IDs.
func (s *service) get(id string) *pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandbox == nil || s.sandbox.id != id {
		return nil
	}
	return s.sandbox
}

// Create sets up a sandbox, or a container.
func (s *service) Create(ctx context.Context, r *taskAPI.CreateTaskRequest) (*taskAPI.CreateTaskResponse, error) {
	spec, err := sandbox.ReadSpec(r.Bundle)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	of, err := optionsOf(r)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	if spec.Sandbox == nil || sandbox.ForRunc(spec.Sandbox) != "" || r.Checkpoint != "" {
		if err := errors.Join(sandbox.ForCrun(r.Bundle, of.BinaryName), sandbox.KeepVolumeFlags(r.Bundle, spec.Mounts, unix.Statfs)); err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
		answer, err := s.TTRPCTaskService.Create(ctx, r)
		if err != nil {
			return nil, err
		}
		pid := 0
		if spec.OwnPIDs {
			pid = int(answer.Pid)
		}
		s.containers.add(r.ID, r.Bundle, pid)
		return answer, nil
	}
	b, err := s.create(r, spec.Sandbox, of.SystemdCgroup)
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &taskAPI.CreateTaskResponse{Pid: uint32(b.PID)}, nil
}

// optionsOf returns what containerd's configuration says about the runtime.
func optionsOf(r *taskAPI.CreateTaskRequest) (*options.Options, error) {
	if r.Options.GetValue() == nil {
		return &options.Options{}, nil
	}
	o, err := typeurl.UnmarshalAny(r.Options)
	if err != nil {
		return nil, err
	}
	of, ok := o.(*options.Options)
	if !ok {
		return nil, fmt.Errorf("options of type %T: %w", o, errdefs.ErrInvalidArgument)
	}
	return of, nil
}

func (s *service) create(r *taskAPI.CreateTaskRequest, spec *specs.Spec, systemd bool) (*pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sandbox != nil {
		return nil, fmt.Errorf("sandbox %s: %w", s.sandbox.id, errdefs.ErrAlreadyExists)
	}
	record, group, err := s.starter.Launch(r.Bundle, spec, systemd)
	if err != nil {
		return nil, err
	}
	s.sandbox = &pod{
		Record:  record,
		id:      r.ID,
		bundle:  r.Bundle,
		group:   group,
		metrics: sync.OnceValue(func() any { return sandbox.Metrics(record.PID) }),
		done:    make(chan struct{}),
	}
	s.send(&eventstypes.TaskCreate{
		ContainerID: r.ID, Bundle: r.Bundle, Rootfs: r.Rootfs, Pid: uint32(record.PID),
		IO: &eventstypes.TaskIO{Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr},
	})
	return s.sandbox, nil
}

// Start reports a sandbox as running. Its process has been running since Create, which no client can see.
func (s *service) Start(ctx context.Context, r *taskAPI.StartRequest) (*taskAPI.StartResponse, error) {
	b := s.get(r.ID)
	if b == nil || r.ExecID != "" {
		return s.TTRPCTaskService.Start(ctx, r)
	}
	s.mu.Lock()
	again := b.running
	b.running = true
	s.mu.Unlock()
	if again {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "sandbox %s has been started", r.ID)
	}
	s.send(&eventstypes.TaskStart{ContainerID: b.id, Pid: uint32(b.PID)})
	return &taskAPI.StartResponse{Pid: uint32(b.PID)}, nil
}

// State returns the state of a process.
func (s *service) State(ctx context.Context, r *taskAPI.StateRequest) (*taskAPI.StateResponse, error) {
	b := s.get(r.ID)
	if b == nil || r.ExecID != "" {
		return s.TTRPCTaskService.State(ctx, r)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	state := &taskAPI.StateResponse{
		ID: b.id, Bundle: b.bundle, Pid: uint32(b.PID), Status: task.Status_CREATED,
		ExitStatus: uint32(b.exit.Status), ExitedAt: protobuf.ToTimestamp(b.exit.Timestamp),
	}
	switch {
	case b.exit.Pid != 0:
		state.Status = task.Status_STOPPED
	case b.running:
		state.Status = task.Status_RUNNING
	}
	return state, nil
}

// Wait returns when a process has ended.
func (s *service) Wait(ctx context.Context, r *taskAPI.WaitRequest) (*taskAPI.WaitResponse, error) {
	b := s.get(r.ID)
	if b == nil || r.ExecID != "" {
		return s.TTRPCTaskService.Wait(ctx, r)
	}
	select {
	case <-b.done:
	case <-ctx.Done():
		return nil, errgrpc.ToGRPC(ctx.Err())
	}
	return &taskAPI.WaitResponse{ExitStatus: uint32(b.exit.Status), ExitedAt: protobuf.ToTimestamp(b.exit.Timestamp)}, nil
}

// Kill signals a process, or all of a container.
func (s *service) Kill(ctx context.Context, r *taskAPI.KillRequest) (*ptypes.Empty, error) {
	b := s.get(r.ID)
	if b == nil || r.ExecID != "" {
		return s.killContainer(ctx, r)
	}
	select {
	case <-b.done:
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "process already finished")
	default:
	}
	group := b.group
	if !r.All {
		group = nil
	}
	alive, err := b.Signal(group, unix.Signal(r.Signal))
	if err == nil && alive == 0 {
		err = fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &ptypes.Empty{}, nil
}

// Delete removes what has ended.
func (s *service) Delete(ctx context.Context, r *taskAPI.DeleteRequest) (*taskAPI.DeleteResponse, error) {
	b := s.get(r.ID)
	if b == nil || r.ExecID != "" {
		answer, err := s.TTRPCTaskService.Delete(ctx, r)
		if err == nil && r.ExecID == "" {
			markDeleted(s.containers.remove(r.ID))
		}
		return answer, err
	}
	select {
	case <-b.done:
	default:
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "sandbox %s is running", r.ID)
	}
	if err := errors.Join(b.Kill(b.group), b.group.Destroy()); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	markDeleted(b.bundle)
	s.mu.Lock()
	s.sandbox = nil
	s.mu.Unlock()
	at := protobuf.ToTimestamp(b.exit.Timestamp)
	s.send(&eventstypes.TaskDelete{ContainerID: b.id, Pid: uint32(b.PID), ExitStatus: uint32(b.exit.Status), ExitedAt: at})
	return &taskAPI.DeleteResponse{Pid: uint32(b.PID), ExitStatus: uint32(b.exit.Status), ExitedAt: at}, nil
}

// Pids returns the processes of a container.
func (s *service) Pids(ctx context.Context, r *taskAPI.PidsRequest) (*taskAPI.PidsResponse, error) {
	b := s.get(r.ID)
	if b == nil {
		return s.TTRPCTaskService.Pids(ctx, r)
	}
	pids, err := b.group.GetAllPids()
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	answer := &taskAPI.PidsResponse{}
	for _, pid := range pids {
		answer.Processes = append(answer.Processes, &task.ProcessInfo{Pid: uint32(pid)})
	}
	return answer, nil
}

// Stats returns the statistics of a container's cgroup.
func (s *service) Stats(ctx context.Context, r *taskAPI.StatsRequest) (*taskAPI.StatsResponse, error) {
	b := s.get(r.ID)
	if b == nil {
		return s.TTRPCTaskService.Stats(ctx, r)
	}
	stats, err := sandbox.Stats(r.ID, b.metrics())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &taskAPI.StatsResponse{Stats: stats}, nil
}

// Connect returns the pids of the shim and of a container.
func (s *service) Connect(ctx context.Context, r *taskAPI.ConnectRequest) (*taskAPI.ConnectResponse, error) {
	b := s.get(r.ID)
	if b == nil {
		return s.TTRPCTaskService.Connect(ctx, r)
	}
	return &taskAPI.ConnectResponse{ShimPid: uint32(os.Getpid()), TaskPid: uint32(b.PID)}, nil
}

// Shutdown ends the shim when it has nothing left.
func (s *service) Shutdown(ctx context.Context, r *taskAPI.ShutdownRequest) (*ptypes.Empty, error) {
	s.mu.Lock()
	held := s.sandbox != nil
	s.mu.Unlock()
	if held {
		return &ptypes.Empty{}, nil
	}
	s.send(nil)
	select {
	case <-s.flushed:
	case <-s.shutdown.Done():
	}
	return s.TTRPCTaskService.Shutdown(ctx, r)
}

// exitStatus returns how a process ended as its shim stored it, and otherwise that it was killed now.
func exitStatus(bundle string, pid int) shim.StopStatus {
	if e, err := runc.ReadExitStatus(bundle); err == nil {
		return shim.StopStatus{Pid: e.Pid, ExitStatus: e.Status, ExitedAt: e.Timestamp}
	}
	return shim.StopStatus{Pid: pid, ExitStatus: 128 + int(unix.SIGKILL), ExitedAt: time.Now()}
}
