package pluginadmin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
)

// Plugin describes a plugin on the socket, as JSON. Fields are only ever added.
type Plugin struct {
	Name    string    `json:"name"`
	Kind    string    `json:"kind"`
	Phase   string    `json:"phase"`
	Message string    `json:"message,omitempty"`
	Since   time.Time `json:"since"`
	Version string    `json:"version,omitempty"`

	Path     string `json:"path"`
	SHA256   string `json:"sha256,omitempty"`
	Source   string `json:"source"`
	PID      int    `json:"pid,omitempty"`
	Cgroup   string `json:"cgroup,omitempty"`
	Starts   int    `json:"starts"`
	InFlight int    `json:"inFlight"`
	// Generation differs for each process.
	Generation uint64 `json:"generation,omitempty"`
	// Changes counts the changes of the plugin. Each start, successful or not, adds at least one when it ends.
	Changes int `json:"changes"`

	// As configured; empty: what the plugin declares counts.
	FailurePolicy string `json:"failurePolicy,omitempty"`
	Timeout       string `json:"timeout,omitempty"`

	// Description is a kubelith.plugin.v1.Description as protojson.
	Description json.RawMessage `json:"description,omitempty"`
}

// plugins returns all plugins, sorted by kind and name.
func (s *Server) plugins() []Plugin {
	var out []Plugin
	for _, state := range s.opts.Host.States() {
		out = append(out, s.plugin(state))
	}
	slices.SortStableFunc(out, func(a, b Plugin) int {
		if a.Kind != b.Kind {
			return strings.Compare(a.Kind, b.Kind)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

func (s *Server) plugin(state host.State) Plugin {
	p := Plugin{
		Name: state.Name, Kind: string(state.Kind), Phase: state.Phase, Message: state.Message, Since: state.Since,
		Version: state.Version, Path: state.Path, SHA256: state.SHA256, Source: state.Source, PID: state.PID,
		Cgroup: state.Cgroup, Starts: state.Starts, InFlight: state.InFlight, Generation: state.Generation,
		Changes: s.opts.Observer.changesOf(state.Name),
	}
	if set := settings(s.opts.Host, state); set.Timeout > 0 {
		p.FailurePolicy, p.Timeout = set.FailurePolicy, set.Timeout.String()
	} else {
		p.FailurePolicy = set.FailurePolicy
	}
	if state.Description != nil {
		p.Description, _ = protojson.Marshal(state.Description) // cannot fail: it came over the wire
	}
	return p
}

// settings returns the settings of the plugin that a state belongs to.
func settings(set plugins.Set, state host.State) plugins.Settings {
	for _, p := range set.Plugins(state.Kind) {
		if p.Name() == state.Name {
			return p.Settings()
		}
	}
	return plugins.Settings{}
}

// handler serves GET /plugins and POST /plugins/{name}/restart.
func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /plugins", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(s.plugins()) // fails only if the caller has gone
	})
	mux.HandleFunc("POST /plugins/{name}/restart", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("name")
		if !slices.ContainsFunc(s.opts.Host.States(), func(state host.State) bool { return state.Name == name }) {
			http.Error(w, fmt.Sprintf("no plugin has the name %q: kubelith plugin list shows them", name), http.StatusNotFound)
			return
		}
		s.opts.Log.WithField("plugin", name).Info("restart requested by an operator")
		if err := s.opts.Host.Restart(name); err != nil {
			http.Error(w, err.Error(), http.StatusConflict)
		}
	})
	return mux
}

// serve handles requests until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("socket %s: %w", listener.Addr(), err)
	}
	return nil
}
