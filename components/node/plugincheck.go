package node

import (
	"fmt"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/host"
)

// pluginResults are what an operator should know of how plugins are configured.
func pluginResults(cfg *config.Server) []host.Result {
	var out []host.Result
	for _, p := range config.Shared(cfg.Plugins) {
		out = append(out, host.Result{Name: "plugin " + p.Name, Status: host.Warn,
			Message: fmt.Sprintf("runs as the user %d (%s), as whom others on this host may run: they could read its key", *p.Limits.UID, p.Source()),
			Fix:     "write limits.uid: auto, which gives it a user of its own"})
	}
	return out
}
