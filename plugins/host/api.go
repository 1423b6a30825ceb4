// Package host keeps a set of plugins running: it decides when to start, check, replace and stop their processes, which
// plugins/process runs, and hands calls to the process that serves. It knows nothing of a plugin's messages beyond
// Describe: plugins/{admission,storage,scheduling} call through plugins.Set.
package host

import (
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Spec is one plugin of the set: from the configuration, the plugins directory, or built in.
type Spec struct {
	process.Spec
	Settings plugins.Settings
}

// AutoUID as Limits.UID asks for a user that no other process on the host has.
const AutoUID = -1

// Options of a Host.
type Options struct {
	Specs    []Spec
	DataDir  string // of the server: executables are in plugins/<kind>, what plugins store is in plugins/data
	RunDir   string // of the server: sockets in p
	NodeName string
	// Validate and Credentials are as in process.Options.
	Validate    map[plugins.Kind]func(name string, d *pluginv1.Description) error
	Credentials func(spec *process.Spec, dir, seen string) (env []string, err error)
	Observe     Observer // may be nil
	Log         *logrus.Entry
}

// Phase is the state of a plugin:
//
//	starting -> ready <-> unhealthy -> backoff -> starting ...
//	   |          \-> draining (no longer wanted)
//	   \-> backoff, and failed after five failures in a row: retried each minute, or when its file or settings change
type Phase string

// The phases, as State shows them.
const (
	Starting  Phase = "starting"
	Ready     Phase = "ready"
	Unhealthy Phase = "unhealthy" // missed a health check
	Backoff   Phase = "backoff"   // waits to be started again
	Failed    Phase = "failed"    // the same, after five failures in a row
	Draining  Phase = "draining"  // no longer wanted: finishes its calls
)

// State describes a plugin at one moment.
type State struct {
	Name        string
	Kind        plugins.Kind
	Path        string
	SHA256      string // of the executable that runs or last ran
	Source      string
	Version     string // from its description
	Phase       string // one of the phases
	Message     string // one line for the operator: why it is in this phase; empty if all is well
	Public      string // Message without the plugin's own output, which may contain secrets
	PID         int    // 0: no process
	Since       time.Time
	Starts      int    // processes that got ready so far
	Cgroup      string // directory of the cgroup that limits the process; empty: none
	Generation  uint64 // of the process; 0: no process
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

// Observer is notified of what happens to plugins: for metrics, Events and conditions. It must not block.
type Observer interface {
	// Called is called after each call.
	Called(plugin string, kind plugins.Kind, method string, code codes.Code, d time.Duration)
	// Changed is called after a change that the operator should know of, with one of the reasons above.
	Changed(s State, reason string)
}
