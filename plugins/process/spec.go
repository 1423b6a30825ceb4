// Package process runs one process of a plugin at a time: it verifies the executable, starts it through
// hashicorp/go-plugin, born in its own cgroup, pid namespace and user, shakes hands, carries its output into the log,
// and ends it with everything it started.
//
//	Verify -> Executable -> Launcher.Start -> Process: Conn, Health, Done, ExitReason, Stop
//
//	launcher.go: start and handshake -> runner.go: what go-plugin calls -> spawn.go: the process, runtime/cgroups
//
// A record on disk names each process and its cgroup, so that Sweep ends what a killed server left. When to start,
// replace and stop, and who is called, is up to plugins/host.
package process

import (
	"fmt"
	"slices"

	"github.com/containerd/containerd/v2/pkg/cap"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/runtime/cgroups"
)

// Spec is what a process is made from.
type Spec struct {
	Name   string
	Kind   plugins.Kind // Start refuses a plugin of another kind; empty: any
	Path   string       // of the executable, absolute
	Args   []string
	Env    []string // NAME=value, in addition to what each plugin gets
	SHA256 string   // hex, of the executable; empty: not checked
	Config []byte   // JSON for Describe; may be empty
	Limits Limits
	Source string // where it is configured, for the operator: "config.yaml:12", or the directory
}

// Limits of a plugin's process and of everything it starts. Zero is the default: 256 MiB and 256 processes, no CPU
// limit.
type Limits struct {
	Memory   int64  // bytes; negative: unlimited
	MilliCPU int64  // thousandths of a CPU
	PIDs     int64  // processes and threads; negative: unlimited
	UID, GID *int64 // nil: the server's
	// Capabilities are all that it may have, without "CAP_"; nil is the default of its kind: none except for storage.
	Capabilities []string
}

// Group returns the group of the plugin's processes; nil: the server's.
func (l Limits) Group() *int {
	id := l.GID
	if id == nil {
		id = l.UID
	}
	if id == nil {
		return nil
	}
	group := int(*id)
	return &group
}

// withDefaults returns the cgroup limits, with the defaults for what is not set.
func (l Limits) withDefaults() cgroups.Limits {
	out := cgroups.Limits{Memory: l.Memory, MilliCPU: l.MilliCPU, PIDs: l.PIDs}
	if out.Memory == 0 {
		out.Memory = 256 << 20
	}
	if out.PIDs == 0 {
		out.PIDs = 256
	}
	return out
}

// storageCapabilities are the default for storage plugins: what mounting, creating and growing file systems takes.
// Plugins from the plugins directories have no settings, and a CSI driver without these can do nothing.
var storageCapabilities = [...]string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "MKNOD", "SYS_ADMIN", "SYS_RESOURCE"}

// Capabilities returns the numbers of the capabilities that the plugin's processes may have. The error names one that
// does not exist.
func (s *Spec) Capabilities() ([]uintptr, error) {
	names := s.Limits.Capabilities
	if names == nil && s.Kind == plugins.Storage {
		names = storageCapabilities[:]
	}
	var out []uintptr
	for _, name := range names {
		n := slices.Index(cap.Known(), "CAP_"+name)
		if n < 0 {
			return nil, fmt.Errorf("unknown capability %q", name)
		}
		out = append(out, uintptr(n))
	}
	return out, nil
}
