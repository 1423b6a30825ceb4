package shim

import (
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	taskAPI "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/runc"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	runcC "github.com/containerd/go-runc"
	"golang.org/x/sys/unix"
)

// sleeper is a process whose end is not waited for.
func sleeper(t *testing.T) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// The signal of a running container is sent without runc, once, to the process that the container was created with.
func TestKillContainer(t *testing.T) {
	s, u := testService(t)
	cmd := sleeper(t)
	bundle := t.TempDir()
	s.containers.add("a", bundle, cmd.Process.Pid)
	u.state = task.Status_RUNNING
	if _, err := s.Kill(t.Context(), &taskAPI.KillRequest{ID: "a", Signal: uint32(unix.SIGTERM)}); err != nil || u.kills != 0 {
		t.Fatalf("kill = %v, reached runc %d times, want none", err, u.kills)
	}
	u.state = task.Status_STOPPED
	if _, err := s.Kill(t.Context(), &taskAPI.KillRequest{ID: "a", Signal: uint32(unix.SIGKILL), All: true}); !errdefs.IsNotFound(errgrpc.ToNative(err)) || u.kills != 0 {
		t.Errorf("kill of what is left of a stopped container = %v, reached runc %d times, want not found", err, u.kills)
	}
	u.state = task.Status_RUNNING // upstream's service has not seen its end
	_ = cmd.Wait()
	if got := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); got != unix.SIGTERM {
		t.Errorf("the process ended by %v, want SIGTERM", got)
	}
	if _, err := s.Kill(t.Context(), &taskAPI.KillRequest{ID: "a", Signal: uint32(unix.SIGTERM)}); !errdefs.IsNotFound(errgrpc.ToNative(err)) || u.kills != 0 {
		t.Errorf("kill of an ended process = %v, reached runc %d times, want not found", err, u.kills)
	}
	if _, err := s.Delete(t.Context(), &taskAPI.DeleteRequest{ID: "a"}); err != nil {
		t.Fatal(err)
	}
	if len(s.containers.of) != 0 {
		t.Error("the pidfd of a deleted container is kept")
	}
	if !isDeleted(bundle) || isDeleted(t.TempDir()) {
		t.Error("a later shim would not know that there is nothing to clean up")
	}
}

// What is more than a signal is for runc.
func TestKillByRunc(t *testing.T) {
	byRunc := 1
	if cgroups.Mode() == cgroups.Unified {
		byRunc = 0
	}
	for name, c := range map[string]struct {
		request *taskAPI.KillRequest
		state   task.Status
		runc    int
	}{
		"running":        {&taskAPI.KillRequest{ID: "a"}, task.Status_RUNNING, 0},
		"paused":         {&taskAPI.KillRequest{ID: "a"}, task.Status_PAUSED, 1},
		"created":        {&taskAPI.KillRequest{ID: "a"}, task.Status_CREATED, 1},
		"all processes":  {&taskAPI.KillRequest{ID: "a", All: true}, task.Status_RUNNING, 1},
		"of an exec":     {&taskAPI.KillRequest{ID: "a", ExecID: "e"}, task.Status_RUNNING, 1},
		"not its own":    {&taskAPI.KillRequest{ID: "b"}, task.Status_RUNNING, 1},
		"shared":         {&taskAPI.KillRequest{ID: "c", All: true}, task.Status_STOPPED, 1},
		"perhaps frozen": {&taskAPI.KillRequest{ID: "a", Signal: uint32(unix.SIGKILL)}, task.Status_RUNNING, byRunc},
	} {
		s, u := testService(t)
		s.containers.add("a", t.TempDir(), sleeper(t).Process.Pid)
		s.containers.add("b", t.TempDir(), 1) // of another parent
		s.containers.add("c", t.TempDir(), 0) // shares process IDs
		u.state = c.state
		if _, err := s.Kill(t.Context(), c.request); err != nil || u.kills != c.runc {
			t.Errorf("%s: kill = %v, reached runc %d times, want %d", name, err, u.kills, c.runc)
		}
		s.containers.remove("a")
	}
}

// Cleaning up after what has been deleted uses neither runc nor the record of a sandbox.
func TestStopDeleted(t *testing.T) {
	bundle := t.TempDir()
	if err := runc.WriteExitStatus(bundle, runcC.Exit{Pid: 7, Status: 3, Timestamp: time.Unix(5, 0)}); err != nil {
		t.Fatal(err)
	}
	markDeleted(bundle)
	t.Chdir(bundle)
	status, err := sandboxManager{}.Stop(t.Context(), filepath.Base(bundle)) // without upstream's manager, it would panic
	if err != nil || status.Pid != 7 || status.ExitStatus != 3 {
		t.Errorf("Stop = %+v, %v", status, err)
	}
}
