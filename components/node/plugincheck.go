package node

import (
	"fmt"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/host"
	pluginhost "kubelith.io/kubelith/plugins/host"
)

// pluginResults are what an operator should know of how plugins are configured.
func pluginResults(cfg *config.Server) []host.Result {
	var out []host.Result
	if err := trusted(cfg.File, cfg.Plugins); err != nil {
		out = append(out, host.Result{Name: "plugins", Status: host.Fail, Message: err.Error()})
	}
	for _, p := range config.Shared(cfg.Plugins) {
		out = append(out, host.Result{Name: "plugin " + p.Name, Status: host.Warn,
			Message: fmt.Sprintf("runs as the user %d (%s), as whom others on this host may run: they could read its key", *p.Limits.UID, p.Source()),
			Fix:     "write limits.uid: auto, which gives it a user of its own"})
	}
	return out
}

// trusted refuses a file that names plugins, which run as root, and that somebody else could have written.
func trusted(file string, named []config.Plugin) error {
	if file == "" || len(named) == 0 {
		return nil
	}
	return pluginhost.OnlyOurs(file, "")
}
