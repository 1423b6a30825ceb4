// Package plugins is the interface between the host of plugins and their callers: the set of plugins of a kind, and a
// call that goes to the process that serves one now. plugins/host implements it; plugins/{admission,storage,scheduling}
// use it.
package plugins

import (
	"bytes"
	"context"
	"encoding/json"
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

// Kinds has all kinds.
var Kinds = []Kind{Admission, Storage, Scheduling}

// Settings are the operator's settings for calls of a plugin.
type Settings struct {
	FailurePolicy string        // "Fail", "Ignore", or empty: what the plugin declares
	Timeout       time.Duration // of a call; 0: what the plugin declares
}

// Plugin is a configured plugin. It stays the same as long as its name and kind do, whichever process serves it; there
// may be none.
type Plugin interface {
	Name() string
	Kind() Kind
	Settings() Settings
	// Description is the last valid one, of this or an earlier run; nil: there never was one.
	Description() *pluginv1.Description
	// Generation of the process that serves now, as in Instance; 0: none serves.
	Generation() uint64
	// Next returns a channel that is closed when a process begins to serve, or to serve again.
	Next() <-chan struct{}
	// Call runs f with the process that serves now and counts the call under the method's short name. f's ctx ends at
	// the earlier of ctx's deadline and the settings' timeout. If no process serves, Call returns a *NotRunningError at
	// once.
	Call(ctx context.Context, method string, f func(context.Context, Instance) error) error
}

// Instance is one process of a plugin.
type Instance struct {
	Conn       grpc.ClientConnInterface
	Generation uint64 // differs for each process; never 0
}

// Set has the plugins of the node.
type Set interface {
	// Plugins of a kind, in the order of the configuration, then by name.
	Plugins(Kind) []Plugin
	// Subscribe calls changed after plugins of a kind, their descriptions, settings or processes have changed. Calls
	// for one subscriber do not overlap; cancel ends them.
	Subscribe(kind Kind, changed func()) (cancel func())
}

// NotRunningError reports that no process serves a plugin.
type NotRunningError struct {
	Plugin string
	Reason string // one line, for the operator
}

func (e *NotRunningError) Error() string {
	return "plugin " + e.Plugin + " is not running: " + e.Reason
}

// Decode decodes an object of a description. An unknown field is an error, as it could be a restriction that would be
// ignored.
func Decode(text []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	return decoder.Decode(into)
}
