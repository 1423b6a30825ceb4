package node

import (
	"fmt"

	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/host/preflight"
	pluginprocess "kubelith.io/kubelith/plugins/process"
)

// pluginResults returns what an operator should know about the configured plugins.
func pluginResults(cfg *config.Server) []preflight.Result {
	var out []preflight.Result
	if err := trusted(cfg.File, cfg.Plugins); err != nil {
		out = append(out, preflight.Result{Name: "plugins", Status: preflight.Fail, Message: err.Error()})
	}
	for _, p := range config.Shared(cfg.Plugins) {
		out = append(out, preflight.Result{Name: "plugin " + p.Name, Status: preflight.Warn,
			Message: fmt.Sprintf("runs as user %d (%s), which other programs on this host may share: they could read its key", *p.Limits.UID, p.Source()),
			Fix:     "set limits.uid: auto, which gives it its own user"})
	}
	return out
}

// trusted refuses a file that names plugins, which run as root, if another user could have written it.
func trusted(file string, named []config.Plugin) error {
	if file == "" || len(named) == 0 {
		return nil
	}
	return pluginprocess.CheckOwnership(file, "")
}
