package shim

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/cgroups/v3"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	ptypes "github.com/containerd/containerd/v2/pkg/protobuf/types"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/procstat"
)

// container is one that upstream's service has, with what this package needs to leave runc out when there is nothing
// for it to do.
type container struct {
	bundle string
	// pidfd stands for its first process also after the pid is another's. -1: the process had ended, or the container
	// shares process IDs with others.
	pidfd int
}

type containers struct {
	mu sync.Mutex
	of map[string]container
}

func newContainers() *containers { return &containers{of: map[string]container{}} }

// add is called when a container has been created. pid is that of its first process, 0 for one that shares process IDs.
func (s *containers) add(id, bundle string, pid int) {
	c := container{bundle, -1}
	if pid != 0 {
		c.pidfd = pidfdOf(pid)
	}
	s.remove(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[id] = c
}

// pidfdOf returns -1 for a process that has ended, and on a kernel without pidfds.
func pidfdOf(pid int) int {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return -1
	}
	// runc's child is the shim's, its subreaper, unless it has been reaped since.
	if stat, err := procstat.Read(pid); err != nil || stat.Parent != os.Getpid() {
		_ = unix.Close(fd)
		return -1
	}
	return fd
}

// remove returns the bundle of the container, "" if there is none.
func (s *containers) remove(id string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.of[id]
	if ok && c.pidfd >= 0 {
		_ = unix.Close(c.pidfd)
	}
	delete(s.of, id)
	return c.bundle
}

// ownPIDs reports whether the container's processes end with its first one, which is known.
func (s *containers) ownPIDs(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.of[id]
	return ok && c.pidfd >= 0
}

// signal signals the first process of a container for which ownPIDs is true.
func (s *containers) signal(id string, signal unix.Signal) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.of[id]
	if !ok || c.pidfd < 0 {
		return unix.ESRCH // deleted just now
	}
	return unix.PidfdSendSignal(c.pidfd, signal, nil, 0)
}

// killContainer signals a process of a container. To start runc only for that takes 6 ms of CPU. So a running container
// with its own process IDs gets its signal from here; one that has ended gets none, which containerd sends to whatever
// may be left of it. Where there is more to do, runc does it: it kills a container that shares process IDs one by one,
// and on cgroup v1 it thaws what SIGKILL cannot end while it is frozen.
//
// Source: runc, libcontainer/container_linux.go: Container.Signal.
func (s *service) killContainer(ctx context.Context, r *taskAPI.KillRequest) (*ptypes.Empty, error) {
	if r.ExecID != "" || !s.containers.ownPIDs(r.ID) {
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	state, err := s.TTRPCTaskService.State(ctx, &taskAPI.StateRequest{ID: r.ID})
	if err != nil {
		return nil, err
	}
	signal := unix.Signal(r.Signal)
	switch {
	case state.Status == task.Status_STOPPED:
		err = unix.ESRCH
	case state.Status == task.Status_RUNNING && !r.All && (signal != unix.SIGKILL || cgroups.Mode() == cgroups.Unified):
		err = s.containers.signal(r.ID, signal)
	default:
		return s.TTRPCTaskService.Kill(ctx, r)
	}
	if errors.Is(err, unix.ESRCH) { // as upstream's service reports it
		err = errgrpc.ToGRPCf(errdefs.ErrNotFound, "process already finished")
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &ptypes.Empty{}, nil
}

// deletedFile is in the bundle of a container, or of a sandbox, that its shim has deleted. containerd asks a new shim
// to clean up after each one all the same, whose connection it has closed.
//
// Source: containerd, core/runtime/v2/shim.go: cleanupAfterDeadShim.
const deletedFile = "deleted"

// markDeleted may fail: the cleanup then runs for nothing.
func markDeleted(bundle string) {
	if bundle != "" {
		_ = os.WriteFile(filepath.Join(bundle, deletedFile), nil, 0o600)
	}
}

func isDeleted(bundle string) bool {
	_, err := os.Stat(filepath.Join(bundle, deletedFile))
	return err == nil
}
