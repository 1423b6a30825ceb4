package node

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/control"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/kinds"
)

// serverPlugins are those of a server: the storage plugin that comes with Kubelith, those of the configuration and of the directories.
func serverPlugins(cfg *config.Server, machine *machine, inProcess *client.InProcess, log *logrus.Logger) (h *host.Host, c *control.Server) {
	specs := func(all []config.Plugin) []host.Spec {
		return withBuiltinPlugins(pluginSpecs(all), withoutKubelet(cfg.Disabled), machine.binDir)
	}
	h, c = newPlugins(&cfg.Node, host.Options{
		Specs:       specs(cfg.Plugins),
		Credentials: machine.pluginUsers.credentials(machine.pki.ClusterCA, cfg.URL()),
	}, control.Options{
		Client: inProcess.Config(client.Plugins),
		File:   cfg.File,
		Reload: reloadPlugins(cfg.File, func(all []config.Plugin) { h.Apply(specs(all)) }, logging.Component(log, "config")),
	}, log)
	return h, c
}

// agentPlugins are those of an agent: the storage plugin that comes with Kubelith and those in its plugins/storage. told is the way to
// the API to tell of them, as the node.
func agentPlugins(cfg *config.Agent, machine *machine, told *rest.Config, log *logrus.Logger) (*host.Host, *control.Server) {
	return newPlugins(&cfg.Node, host.Options{Specs: withBuiltinPlugins(nil, cfg.Disabled, machine.binDir)}, control.Options{Client: told}, log)
}

// newPlugins returns what runs the plugins, and what an operator sees of them. The options have what is not the same on every node.
func newPlugins(cfg *config.Node, h host.Options, c control.Options, log *logrus.Logger) (*host.Host, *control.Server) {
	observer, entry := control.NewObserver(), logging.Component(log, "plugins")
	h.DataDir, h.RunDir, h.NodeName = cfg.DataDir, cfg.SocketDir(), cfg.NodeName
	h.Validate, h.Observe, h.Log = kinds.Validators(), observer, entry
	running := host.New(h)
	c.Host, c.Observer, c.Log = running, observer, entry
	c.Socket, c.NodeName = filepath.Join(cfg.SocketDir(), control.SocketName), cfg.NodeName
	c.Register = legacyregistry.Registerer()
	return running, control.New(c)
}

// pluginSpecs are what the host of plugins is to run for the entries of a configuration, which are valid.
func pluginSpecs(all []config.Plugin) []host.Spec {
	var out []host.Spec
	for _, p := range all {
		memory, _ := p.Limits.MemoryBytes()
		cpu, _ := p.Limits.MilliCPU()
		out = append(out, host.Spec{
			Name:     p.Name,
			Kind:     plugins.Kind(p.Kind),
			Path:     p.Path,
			Args:     p.Args,
			Env:      p.Env,
			SHA256:   p.SHA256,
			Settings: plugins.Settings{FailurePolicy: p.FailurePolicy, Timeout: p.Timeout},
			Config:   p.Config,
			Limits: host.Limits{Memory: memory, MilliCPU: cpu, PIDs: p.Limits.PIDs, UID: p.Limits.UID, GID: p.Limits.GID,
				Capabilities: p.Limits.Capabilities},
			Source: p.Source(),
		})
	}
	return out
}

// reloadPlugins returns what is done when the configuration file has changed: apply gets its plugins.
func reloadPlugins(file string, apply func([]config.Plugin), log logrus.FieldLogger) func() {
	var before *config.Server
	return func() {
		now, changed, err := config.Reload(file, before)
		if err == nil {
			err = trusted(file, now.Plugins)
		}
		if err != nil {
			for line := range strings.SplitSeq(fmt.Sprint(err), "\n") {
				log.Errorf("%s: all plugins stay as they are", line)
			}
			return
		}
		before = now
		if len(changed) > 0 {
			log.Warnf("%s: only plugins are read again while the server runs, what has changed of %s takes effect at the next start", file, strings.Join(changed, ", "))
		}
		apply(now.Plugins)
	}
}
