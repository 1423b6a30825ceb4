// Package shim is the program that holds the processes of a pod while the server restarts: containerd's shim for runc,
// with our own sandboxes.
//
// A pod's sandbox is one process that does nothing but hold its namespaces. runc starts itself three times for it, and
// compiles a seccomp filter for a program that only waits. The shim starts that process itself (sandbox.go,
// pause/pause.c). What is special about a sandbox, such as a user namespace or a SELinux label, goes to runc, and so
// does every container. See docs/adr/039-sandboxes-without-runc.md.
package shim

import (
	"context"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/manager"
	"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2/task"
	"github.com/containerd/containerd/v2/pkg/shim"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
)

const (
	// startGCPercent applies while the pod starts: all that is allocated until then fits. With upstream's percentage,
	// garbage collection takes a quarter of a shim's CPU for a pod.
	startGCPercent = 400
	// gcPercent applies afterwards. Source: setRuntime of upstream's pkg/shim.
	gcPercent = 40
	// settleAfter is when the pod should have started.
	settleAfter = 10 * time.Second
	// processors is how many threads execute Go code at a time. A shim waits for others nearly always, and each further
	// one has caches of its own: with the four that upstream's manager sets, an idle shim has 0.5 MB more.
	processors = 1
)

// runtimeName is that of upstream's shim: what it does for containers is the same.
const runtimeName = "io.containerd.runc.v2"

// Run is the program. containerd starts it as the shim of runtime io.containerd.runc.v2.
func Run(ctx context.Context) {
	runtime.GOMAXPROCS(processors)
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "task",
		Requires: []plugin.Type{plugins.EventPlugin, plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			publisher, err := ic.GetByID(plugins.EventPlugin, "publisher")
			if err != nil {
				return nil, err
			}
			stop, err := ic.GetByID(plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			events, sd := publisher.(shim.Publisher), stop.(shutdown.Service)
			containers, err := task.NewTaskService(ic.Context, events, sd)
			if err != nil {
				return nil, err
			}
			s := newService(containers, sd)
			go s.run(ic.Context, events)
			collectLater()
			return s, nil
		},
	})
	shim.RunShim(ctx, sandboxManager{manager.NewShimManager(runtimeName)})
}

// collectLater collects no garbage until the pod should have started, and then returns what was needed for that to the
// system.
func collectLater() {
	debug.SetGCPercent(startGCPercent)
	time.AfterFunc(settleAfter, func() {
		debug.SetGCPercent(gcPercent)
		debug.FreeOSMemory()
	})
}
