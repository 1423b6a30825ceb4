package tasks

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	eventstypes "github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/runtime"
	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"golang.org/x/sys/unix"

	"kubelith.io/kubelith/base/atomicfile"
	"kubelith.io/kubelith/runtime/sandbox"
)

// recordFile is in the bundle of a task of this package.
const recordFile = "task.json"

// record is what a later server needs to find a task again, and to end what is left of it.
type record struct {
	Pod     string           `json:"pod"`
	Socket  string           `json:"socket"` // of its keeper
	Key     uint32           `json:"key"`    // that the keeper knows it by; 0: a sandbox
	IO      runtime.IO       `json:"io"`
	Options *options.Options `json:"options"`
	OwnPIDs bool             `json:"ownPIDs"`
	Cgroup  string           `json:"cgroup"`
	Paused  bool             `json:"paused,omitempty"`
	// PodKills is how many processes of its pod the kernel had killed for want of memory when it was made.
	PodKills int64 `json:"podKills,omitempty"`
}

func (r *record) write(bundle string) error {
	content, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(bundle, recordFile), content)
}

// base is what sandboxes and containers have in common.
type base struct {
	manager *Manager
	pod     *pod
	bundle  *v2.Bundle
	spec    *sandbox.Bundle // nil after a restart
	record  record
	once    *sync.Once // of lost
}

// lostAlready ends a task whose keeper has ended while it was being made: Manager.lost did not know it.
func (b *base) lostAlready(t task) {
	select {
	case <-b.pod.gone:
		go t.lost(namespaces.WithNamespace(context.Background(), b.bundle.Namespace))
	default:
	}
}

// ID implements runtime.Task.
func (b *base) ID() string { return b.bundle.ID }

// Namespace implements runtime.Task.
func (b *base) Namespace() string { return b.bundle.Namespace }

// podOf implements task.
func (b *base) podOf() *pod { return b.pod }

// publish sends an event, which nobody may wait for.
func (b *base) publish(event any) {
	ctx := namespaces.WithNamespace(context.Background(), b.bundle.Namespace)
	if err := b.manager.publisher.Publish(ctx, runtime.GetTopic(event), event); err != nil {
		log.G(ctx).WithError(err).WithField("id", b.ID()).Error("publish an event")
	}
}

// remove removes the bundle of a task that has been deleted, and takes the task from the manager. If that fails the
// task stays, so that it can be deleted again; a lost one goes all the same.
func (b *base) remove(ctx context.Context, lost bool) error {
	err := b.bundle.Delete()
	if err != nil && !lost {
		return err
	}
	b.manager.tasks.Delete(namespaces.WithNamespace(ctx, b.bundle.Namespace), b.ID())
	b.manager.leave(b.pod)
	return err
}

// process is the state of one: the first of a task, or one that was executed in it.
type process struct {
	mu   sync.Mutex    // held during what changes the state, which may take as long as runc does
	pid  int           // 0: it has not been created
	done chan struct{} // closed when ended is there

	data    sync.Mutex // guards what follows: its readers wait for no runc
	running bool       // it has been started
	ended   *exit
}

func newProcess() process { return process{done: make(chan struct{})} }

// start is called with the lock, as end is.
func (p *process) start() {
	p.data.Lock()
	defer p.data.Unlock()
	p.running = true
}

// end is called once.
func (p *process) end(e exit) {
	p.data.Lock()
	defer p.data.Unlock()
	p.ended = &e
	close(p.done)
}

func (p *process) state(io runtime.IO) runtime.State {
	p.data.Lock()
	defer p.data.Unlock()
	s := runtime.State{
		Status: runtime.CreatedStatus, Pid: uint32(p.pid), Stdin: io.Stdin, Stdout: io.Stdout, Stderr: io.Stderr, Terminal: io.Terminal,
	}
	switch {
	case p.ended != nil:
		s.Status, s.ExitStatus, s.ExitedAt = runtime.StoppedStatus, uint32(p.ended.status), p.ended.at
	case p.running:
		s.Status = runtime.RunningStatus
	}
	return s
}

func (p *process) wait(ctx context.Context) (*runtime.Exit, error) {
	select {
	case <-p.done:
		return p.exit(), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// exit is called when done is closed.
func (p *process) exit() *runtime.Exit {
	return &runtime.Exit{Pid: uint32(p.pid), Status: uint32(p.ended.status), Timestamp: p.ended.at}
}

func taskExit(task, process string, e *runtime.Exit) *eventstypes.TaskExit {
	return &eventstypes.TaskExit{
		ContainerID: task, ID: process, Pid: e.Pid, ExitStatus: e.Status, ExitedAt: protobuf.ToTimestamp(e.Timestamp),
	}
}

func taskDelete(task string, e *runtime.Exit) *eventstypes.TaskDelete {
	return &eventstypes.TaskDelete{ContainerID: task, Pid: e.Pid, ExitStatus: e.Status, ExitedAt: protobuf.ToTimestamp(e.Timestamp)}
}

var errFinished = fmt.Errorf("process already finished: %w", errdefs.ErrNotFound)

// killed is the exit of a process whose end nobody has seen.
func killed() exit { return exit{128 + int(unix.SIGKILL), time.Now()} }

// pidsOf returns the processes of a cgroup.
func pidsOf(id string, metrics any) ([]runtime.ProcessInfo, error) {
	var pids []runtime.ProcessInfo
	switch group := metrics.(type) {
	case cgroup1.Cgroup:
		members, err := group.Processes(cgroup1.Devices, true)
		if err != nil {
			return nil, err
		}
		for _, p := range members {
			pids = append(pids, runtime.ProcessInfo{Pid: uint32(p.Pid)})
		}
	case *cgroup2.Manager:
		members, err := group.Procs(true)
		if err != nil {
			return nil, err
		}
		for _, pid := range members {
			pids = append(pids, runtime.ProcessInfo{Pid: uint32(pid)})
		}
	default:
		return nil, fmt.Errorf("the cgroup of %s: %w", id, errdefs.ErrNotFound)
	}
	return pids, nil
}
