// Package host runs plugins: it verifies and starts their executables through hashicorp/go-plugin, limits them,
// watches their health, starts them again, replaces them while calls go on and carries their output into the log.
// It knows nothing of what a plugin says beyond Describe: plugins/{admission,storage,scheduling} call through plugins.Set.
package host

import (
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Spec is one plugin as somebody wants it: the configuration, the plugins directory, or Kubelith itself.
type Spec struct {
	Name     string
	Kind     plugins.Kind
	Path     string // of the executable, absolute
	Args     []string
	Env      []string // NAME=value, beside what each plugin gets
	SHA256   string   // hex, of the executable; empty: not checked
	Settings plugins.Settings
	Config   []byte // JSON for Describe; may be empty
	Limits   Limits
	Source   string // who wants it, for the operator: "config.yaml:12", or the directory
	Builtin  bool   // comes with Kubelith
}

// Limits of a plugin's process and all that it starts. Zero is the default: 256 MiB and 256 processes, no limit of CPU.
type Limits struct {
	Memory   int64  // bytes; less than 0: none
	MilliCPU int64  // thousandths of a CPU
	PIDs     int64  // processes and threads; less than 0: none
	UID, GID *int64 // UID may be AutoUID
	// Capabilities are all that it may have, without "CAP_"; nil is the default of its kind: none but for storage.
	Capabilities []string
}

// AutoUID as Limits.UID is a user of the plugin's own, whom nobody else on the host is.
const AutoUID = -1

// Group is that of a plugin's processes; nil: ours.
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

// Options of a Host.
type Options struct {
	Specs    []Spec
	DataDir  string // of the server: plugins live in plugins/<kind>, what they store in plugins/data
	RunDir   string // of the server: sockets in p
	NodeName string
	// Validate refuses a description that a kind cannot work with; what it says is shown to the operator.
	Validate map[plugins.Kind]func(name string, d *pluginv1.Description) error
	Observe  Observer // may be nil
	// Credentials puts into dir, which goes with the process, what the plugin reads the cluster with, and returns variables for
	// it; the plugin knows the directory as seen. May be nil.
	Credentials func(spec *Spec, dir, seen string) (env []string, err error)
	Log         *logrus.Entry
}

// Phase is where a plugin stands:
//
//	starting -> ready <-> unhealthy -> backoff -> starting ...
//	   |          \-> draining (the process before, after a replacement)
//	   \-> backoff, and failed once it has failed five times in a row: tried again each minute, or when its file or settings change
type Phase string

// The phases, as State shows them.
const (
	Starting  Phase = "starting"
	Ready     Phase = "ready"
	Unhealthy Phase = "unhealthy" // missed a health check
	Backoff   Phase = "backoff"   // waits for the next start
	Failed    Phase = "failed"    // the same, after many failures
	Draining  Phase = "draining"  // no longer wanted: finishes its calls
)

// State is what can be told of a plugin.
type State struct {
	Name        string
	Kind        plugins.Kind
	Path        string
	SHA256      string // of the executable that runs or last ran
	Source      string
	Version     string // as it says itself
	Phase       string // one of the phases
	Message     string // one line for the operator: why it is in this phase; empty when all is well
	Public      string // the same for everybody: without what the plugin printed
	PID         int    // 0 without a process
	Since       time.Time
	Starts      int    // processes that got ready so far
	Cgroup      string // what limits the process; empty: nothing
	Generation  uint64 // of the process, 0 without one
	InFlight    int    // calls
	Description *pluginv1.Description
}

// The reasons of Observer.Changed.
const (
	PluginReady     = "PluginReady"
	PluginFailed    = "PluginFailed"
	PluginReplaced  = "PluginReplaced"
	PluginOOM       = "PluginOOM"
	PluginUnhealthy = "PluginUnhealthy"
)

// Observer is told what happens to plugins: for metrics, Events and conditions. It must not block.
type Observer interface {
	// Called after each call.
	Called(plugin string, kind plugins.Kind, method string, code codes.Code, d time.Duration)
	// Changed after a change that somebody should hear of.
	Changed(s State, reason string)
}
