// Package tasks runs the containers of this node: it is containerd's runtime for what runc starts, in this process.
// containerd itself would start a shim for every pod, a program in Go that waits for its containers.
//
// What must survive a restart of the server is in a keeper, one small program per pod: it is the parent of the
// containers' processes, copies their output and knows how they ended (keeper/keeper.c, keeper.go). All else, such as a
// task's states, is here, and is found again through a record in its bundle and its keeper (load.go).
//
// A pod's sandbox is a process of runtime/sandbox (sandbox.go), or a container where it needs runc. A container is
// made, started and deleted by runc (container.go, exec.go). Tasks of other runtimes, of earlier releases, and those
// that are restored from a checkpoint are upstream's, with a shim. See docs/adr/062-containers-without-shims.md.
package tasks

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/core/runtime"
	v2 "github.com/containerd/containerd/v2/core/runtime/v2"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"github.com/opencontainers/runtime-spec/specs-go/features"

	"kubelith.io/kubelith/runtime/sandbox"
)

// Options configures a Manager. All paths are absolute.
type Options struct {
	Root   string   // work directories, which runc's checkpoints use
	State  string   // bundles, on a tmpfs
	Socket string   // the directory of the keepers' sockets; short
	Keeper string   // the program
	Pause  string   // the program of sandboxes
	Server string   // what the keepers are started with as their owner: containerd's socket
	Ours   []string // names and paths of the runtimes whose containers are run here
	// Trial reports whether an earlier release may come back, because this one has not been ready yet: new pods are
	// then upstream's, since that release may not know this package.
	Trial func() bool
}

// Manager is a runtime of containerd. It implements runtime.PlatformRuntime. The goroutines of its tasks follow
// containers and keepers, which outlive the process. They end with it, as those of upstream's manager do: containerd
// runs once in a process.
type Manager struct {
	runtime.PlatformRuntime // upstream's, for the other tasks

	opts      Options
	publisher events.Publisher
	starter   *sandbox.Starter
	tasks     *runtime.NSMap[task]
	oom       *outOfMemory // nil: there is nothing to hear

	mu   sync.Mutex
	pods map[podKey]*pod

	loading []*pod // those that load has met
}

// task is one of this package.
type task interface {
	runtime.Task
	// delete deletes a task that has ended.
	delete(context.Context) (*runtime.Exit, error)
	podOf() *pod
	// lost ends what is left of a task without its keeper.
	lost(context.Context)
}

type podKey struct{ namespace, id string }

// pod is a sandbox with its containers, which have a keeper.
type pod struct {
	podKey
	socket string
	*keeper
	found map[uint32]found // what the keeper had when this server began, by its keys; load takes tasks from it
	tasks int              // guarded by the manager's mutex
	kills atomic.Int64     // processes that the kernel has killed for want of memory and that are accounted for
}

// New returns a Manager that has found its tasks again.
func New(ctx context.Context, upstream runtime.PlatformRuntime, publisher events.Publisher, o Options) (*Manager, error) {
	m := &Manager{
		PlatformRuntime: upstream,
		opts:            o,
		publisher:       publisher,
		starter:         sandbox.NewStarter(o.Pause),
		tasks:           runtime.NewNSMap[task](),
		oom:             newOutOfMemory(),
		pods:            map[podKey]*pod{},
	}
	for _, dir := range []string{o.Root, o.State} {
		if err := os.MkdirAll(dir, 0o711); err != nil { // containers in user namespaces pass through
			return nil, err
		}
	}
	return m, m.load(ctx)
}

// isOurs reports whether a new task is of this package. A container is where its sandbox is.
func (m *Manager) isOurs(ctx context.Context, id string, o *runtime.CreateOpts) bool {
	ours := !m.opts.Trial()
	if o.SandboxID != "" && o.SandboxID != id {
		_, err := m.tasks.Get(ctx, o.SandboxID)
		ours = err == nil
	}
	if ours && slices.Contains(m.opts.Ours, o.Runtime) && o.Checkpoint == "" && isFIFO(o.IO) {
		return true
	}
	if ours {
		o.SandboxID = "" // upstream has no shim for it, and starts one
	}
	return false
}

// Create implements runtime.PlatformRuntime.
func (m *Manager) Create(ctx context.Context, id string, o runtime.CreateOpts) (_ runtime.Task, err error) {
	if !m.isOurs(ctx, id, &o) {
		return m.PlatformRuntime.Create(ctx, id, o)
	}
	namespace, err := namespaces.NamespaceRequired(ctx)
	if err != nil {
		return nil, err
	}
	of, err := optionsOf(o)
	if err != nil {
		return nil, err
	}
	bundle, err := v2.NewBundle(ctx, m.opts.Root, m.opts.State, id, o.Spec)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, bundle.Delete())
		}
	}()
	spec, err := sandbox.ReadSpec(bundle.Path)
	if err != nil {
		return nil, err
	}
	if err := m.checkFeatures(ctx, spec.Mounts, o); err != nil {
		return nil, err
	}
	p, err := m.join(podKey{namespace, cmp.Or(spec.Pod, id)})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			m.leave(p)
		}
	}()
	b := base{once: &sync.Once{}, manager: m, pod: p, bundle: bundle, spec: spec, record: record{
		Pod: p.id, Socket: p.socket, IO: o.IO, Options: of, OwnPIDs: spec.OwnPIDs, Cgroup: spec.Cgroup,
	}}
	var t task
	if spec.Sandbox != nil && sandbox.ForRunc(spec.Sandbox) == "" {
		t, err = createSandbox(ctx, b)
	} else {
		t, err = createContainer(ctx, b, o.Rootfs)
	}
	if err != nil {
		return nil, err
	}
	if err := m.tasks.AddWithNamespace(namespace, t); err != nil {
		t.lost(ctx)
		return nil, err
	}
	b.lostAlready(t)
	return t, nil
}

func runtimeOptions(o runtime.CreateOpts) typeurl.Any {
	if o.TaskOptions == nil || o.TaskOptions.GetValue() == nil {
		return o.RuntimeOptions
	}
	return o.TaskOptions
}

// optionsOf returns what containerd's configuration says about the runtime.
func optionsOf(o runtime.CreateOpts) (*options.Options, error) {
	any := runtimeOptions(o)
	if any == nil || any.GetValue() == nil {
		return &options.Options{}, nil
	}
	v, err := typeurl.UnmarshalAny(any)
	if err != nil {
		return nil, err
	}
	of, ok := v.(*options.Options)
	if !ok {
		return nil, fmt.Errorf("options of type %T: %w", v, errdefs.ErrInvalidArgument)
	}
	return of, nil
}

// join returns the pod of a new task, with its keeper. The first task of a pod is its sandbox, and alone.
func (m *Manager) join(key podKey) (*pod, error) {
	if p := m.another(key); p != nil {
		return p, nil
	}
	sum := sha256.Sum256([]byte(key.namespace + "/" + key.id))
	socket := filepath.Join(m.opts.Socket, hex.EncodeToString(sum[:16]))
	if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	k, err := startKeeper(m.opts.Keeper, socket, "-namespace", key.namespace, "-id", key.id, "-address", m.opts.Server)
	if err != nil {
		return nil, err
	}
	return m.add(&pod{podKey: key, socket: socket, keeper: k}), nil
}

// another returns a pod for one more task, nil if there is none.
func (m *Manager) another(key podKey) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	p := m.pods[key]
	if p != nil {
		p.tasks++
	}
	return p
}

// add adds a pod with its first task.
func (m *Manager) add(p *pod) *pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	p.tasks = 1
	m.pods[p.podKey] = p
	go func() {
		<-p.gone
		m.lost(p)
	}()
	return p
}

// leave takes a task from its pod. The keeper of a pod without tasks ends.
func (m *Manager) leave(p *pod) {
	m.mu.Lock()
	p.tasks--
	last := p.tasks == 0
	if last && m.pods[p.podKey] == p {
		delete(m.pods, p.podKey)
		_ = os.Remove(p.socket)
	}
	m.mu.Unlock()
	if last {
		p.quit()
	}
}

// lost ends the tasks of a pod whose keeper has ended before them.
func (m *Manager) lost(p *pod) {
	m.mu.Lock()
	known := m.pods[p.podKey] == p
	if known {
		delete(m.pods, p.podKey)
		if k, err := dialKeeper(p.socket); err == nil { // only the connection has ended
			_, _ = k.adopt()
			defer k.quit()
		}
		_ = os.Remove(p.socket)
	}
	m.mu.Unlock()
	if !known { // its last task has been deleted
		return
	}
	ctx := namespaces.WithNamespace(context.Background(), p.namespace)
	log.G(ctx).WithField("pod", p.id).Error("the keeper of a pod has ended: the pod ends with it")
	all, _ := m.tasks.GetAll(ctx, false)
	for _, t := range all {
		if t.podOf() == p {
			t.lost(ctx)
		}
	}
}

// Get implements runtime.PlatformRuntime.
func (m *Manager) Get(ctx context.Context, id string) (runtime.Task, error) {
	t, err := m.tasks.Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return m.PlatformRuntime.Get(ctx, id)
	}
	return t, err
}

// Tasks implements runtime.PlatformRuntime.
func (m *Manager) Tasks(ctx context.Context, all bool) ([]runtime.Task, error) {
	list, err := m.PlatformRuntime.Tasks(ctx, all)
	if err != nil {
		return nil, err
	}
	ours, err := m.tasks.GetAll(ctx, all)
	for _, t := range ours {
		list = append(list, t)
	}
	return list, err
}

// Delete implements runtime.PlatformRuntime.
func (m *Manager) Delete(ctx context.Context, id string) (*runtime.Exit, error) {
	t, err := m.tasks.Get(ctx, id)
	if errdefs.IsNotFound(err) {
		return m.PlatformRuntime.Delete(ctx, id)
	}
	if err != nil {
		return nil, err
	}
	return t.delete(ctx)
}

// PluginInfo answers containerd's introspection, as upstream's runtime does.
func (m *Manager) PluginInfo(ctx context.Context, request any) (any, error) {
	i, ok := m.PlatformRuntime.(interface {
		PluginInfo(context.Context, any) (any, error)
	})
	if !ok {
		return nil, errdefs.ErrNotImplemented
	}
	return i.PluginInfo(ctx, request)
}

// checkFeatures refuses ID-mapped mounts for a runtime that would ignore them.
//
// Source: containerd, core/runtime/v2/task_manager.go: validateRuntimeFeatures.
func (m *Manager) checkFeatures(ctx context.Context, mounts []specs.Mount, o runtime.CreateOpts) error {
	mapped := slices.ContainsFunc(mounts, func(m specs.Mount) bool {
		return m.UIDMappings != nil || m.GIDMappings != nil || slices.Contains(m.Options, "idmap") || slices.Contains(m.Options, "ridmap")
	})
	if !mapped {
		return nil
	}
	info, err := m.PluginInfo(ctx, &types.RuntimeRequest{RuntimePath: o.Runtime, Options: typeurl.MarshalProto(runtimeOptions(o))})
	if err != nil {
		return fmt.Errorf("runtime info: %w", err)
	}
	of, ok := info.(*types.RuntimeInfo)
	if !ok {
		return nil
	}
	known, err := typeurl.UnmarshalAny(of.Features)
	if err != nil {
		return fmt.Errorf("features of the runtime: %w", err)
	}
	f, ok := known.(*features.Features)
	if !ok || f.Linux != nil && f.Linux.MountExtensions != nil && f.Linux.MountExtensions.IDMap != nil &&
		f.Linux.MountExtensions.IDMap.Enabled != nil && *f.Linux.MountExtensions.IDMap.Enabled {
		return nil
	}
	return errors.New("the runtime has no ID-mapped mounts, which the container needs")
}
