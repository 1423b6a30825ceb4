// Package plugins names what those who call plugins need of their host: the
// set of plugins of a kind, and a call that goes to whatever process serves one now.
// plugins/host makes them real; plugins/{admission,storage,scheduling} use them.
package plugins

import (
	"context"
	"time"

	"google.golang.org/grpc"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// Kind of a plugin: what it extends.
type Kind string

// The kinds; also the names of their folders in <data-dir>/plugins.
const (
	Admission  Kind = "admission"
	Storage    Kind = "storage"
	Scheduling Kind = "scheduling"
)

// Kinds are all of them.
var Kinds = []Kind{Admission, Storage, Scheduling}

// Settings are what the operator's configuration says of a plugin beyond how to start it.
type Settings struct {
	FailurePolicy string        // "Fail", "Ignore", or "" for what the plugin declares
	Timeout       time.Duration // of a call; 0 for what the plugin declares
}

// Plugin is a configured plugin. Its process may be missing, and another one
// from call to call; the Plugin stays the same as long as its name and kind do.
type Plugin interface {
	Name() string
	Kind() Kind
	Settings() Settings
	// Description is the last that was valid, of this or of an earlier run; nil when there never was one.
	Description() *pluginv1.Description
	// Generation of the process that serves now, as in Instance; 0 without one.
	Generation() uint64
	// Call runs f with the process that serves now and counts it under the method's short name.
	// ctx ends at the earlier of its own deadline and that of the settings. Without a
	// process the error is a *NotRunningError at once: nobody waits for a dead plugin.
	Call(ctx context.Context, method string, f func(context.Context, Instance) error) error
}

// Instance is one process of a plugin.
type Instance struct {
	Conn       grpc.ClientConnInterface
	Generation uint64 // another one for each process; never 0
}

// Set is the plugins of the node.
type Set interface {
	// Plugins of a kind, in the order of the configuration, then by name.
	Plugins(Kind) []Plugin
	// Subscribe calls changed after the plugins of a kind, their descriptions, settings or processes changed, never
	// at the same time for one subscriber; cancel ends it.
	Subscribe(kind Kind, changed func()) (cancel func())
}

// NotRunningError says that no process serves a plugin.
type NotRunningError struct {
	Plugin string
	Reason string // one line, for the operator
}

func (e *NotRunningError) Error() string {
	return "plugin " + e.Plugin + " is not running: " + e.Reason
}
