package node

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/pluginadmin"
	pluginprocess "kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
)

// serverPlugins runs the plugins of a server: the storage plugin that comes with Kubelith, those of the configuration
// and of the directories.
func serverPlugins(cfg *config.Server, machine *machine, inProcess *client.InProcess, log *logrus.Logger) (h *host.Host, c *pluginadmin.Server) {
	specs := func(all []config.Plugin) []host.Spec {
		return withBuiltinPlugins(pluginSpecs(all), withoutKubelet(cfg.Disabled), machine.binDir)
	}
	h, c = newPlugins(&cfg.Node, host.Options{
		Specs:       specs(cfg.Plugins),
		Credentials: machine.pluginUsers.credentials(machine.pki.ClusterCA, machine.pki.ClusterTrust, cfg.URL()),
	}, pluginadmin.Options{
		Client: inProcess.Config(client.Plugins),
		File:   cfg.File,
		Reload: reloadPlugins(cfg.File, func(all []config.Plugin) { h.Apply(specs(all)) }, logging.Component(log, "config")),
	}, log)
	return h, c
}

// agentPlugins runs the plugins of an agent: the storage plugin that comes with Kubelith and those in its
// plugins/storage. told is the client configuration that reports them to the API, as the node.
func agentPlugins(cfg *config.Agent, machine *machine, told *rest.Config, log *logrus.Logger) (*host.Host, *pluginadmin.Server) {
	return newPlugins(&cfg.Node, host.Options{Specs: withBuiltinPlugins(nil, cfg.Disabled, machine.binDir)}, pluginadmin.Options{Client: told}, log)
}

// newPlugins returns the components that run the plugins and show them to an operator. The options hold what differs
// between nodes.
func newPlugins(cfg *config.Node, h host.Options, c pluginadmin.Options, log *logrus.Logger) (*host.Host, *pluginadmin.Server) {
	observer, entry := pluginadmin.NewObserver(), logging.Component(log, "plugins")
	h.DataDir, h.RunDir, h.NodeName = cfg.DataDir, cfg.SocketDir(), cfg.NodeName
	h.Validate, h.Observe, h.Log = pluginValidators(), observer, entry
	running := host.New(h)
	c.Host, c.Observer, c.Log = running, observer, entry
	c.Socket, c.NodeName = filepath.Join(cfg.SocketDir(), pluginadmin.SocketName), cfg.NodeName
	c.Register = legacyregistry.Registerer()
	return running, pluginadmin.New(c)
}

// pluginValidators refuse the descriptions that a kind cannot work with.
func pluginValidators() map[plugins.Kind]func(string, *pluginv1.Description) error {
	return map[plugins.Kind]func(string, *pluginv1.Description) error{
		plugins.Admission:  admission.Validate,
		plugins.Scheduling: scheduling.Validate,
		plugins.Storage:    storage.Validate,
	}
}

// pluginSpecs returns what the plugin host runs for the entries of a valid configuration.
func pluginSpecs(all []config.Plugin) []host.Spec {
	var out []host.Spec
	for _, p := range all {
		memory, _ := p.Limits.MemoryBytes()
		cpu, _ := p.Limits.MilliCPU()
		out = append(out, host.Spec{
			Spec: pluginprocess.Spec{
				Name:   p.Name,
				Kind:   plugins.Kind(p.Kind),
				Path:   p.Path,
				Args:   p.Args,
				Env:    p.Env,
				SHA256: p.SHA256,
				Config: p.Config,
				Limits: pluginprocess.Limits{Memory: memory, MilliCPU: cpu, PIDs: p.Limits.PIDs, UID: p.Limits.UID, GID: p.Limits.GID,
					Capabilities: p.Limits.Capabilities},
				Source: p.Source(),
			},
			Settings: plugins.Settings{FailurePolicy: p.FailurePolicy, Timeout: p.Timeout},
		})
	}
	return out
}

// reloadPlugins returns a function to call when the configuration file has changed: apply gets its plugins.
func reloadPlugins(file string, apply func([]config.Plugin), log logrus.FieldLogger) func() {
	var before *config.Server
	return func() {
		now, changed, err := config.Reload(file, before)
		if err == nil {
			err = trusted(file, now.Plugins)
		}
		if err != nil {
			for line := range strings.SplitSeq(fmt.Sprint(err), "\n") {
				log.Errorf("%s: no plugin is changed", line)
			}
			return
		}
		before = now
		if len(changed) > 0 {
			log.Warnf("%s: only plugins are reloaded while the server runs, the change of %s takes effect at the next start", file, strings.Join(changed, ", "))
		}
		apply(now.Plugins)
	}
}
