package node

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/base/client"
	"kubelith.io/kubelith/base/config"
	"kubelith.io/kubelith/base/logging"
	"kubelith.io/kubelith/host/preflight"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/credentials"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/pluginadmin"
	pluginprocess "kubelith.io/kubelith/plugins/process"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/runtime/payload"
)

// serverPlugins runs the plugins of a server: the storage plugin that comes with Kubelith, those of the configuration
// and of the directories.
func serverPlugins(
	cfg *config.Server, machine *machine, inProcess *client.InProcess, log *logrus.Logger,
) (h *host.Host, c *pluginadmin.Server) {
	specs := func(all []config.Plugin) []host.Spec {
		return withBuiltinPlugins(pluginSpecs(all), withoutKubelet(cfg.Disabled), machine.binDir)
	}
	h, c = newPlugins(&cfg.Node, host.Options{
		Specs: specs(cfg.Plugins),
		Credentials: machine.pluginUsers.Credentials(credentials.Options{
			CA: machine.pki.ClusterCA, Trust: machine.pki.ClusterTrust, Server: cfg.URL(), Life: testedLife(),
		}),
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
	specs := withBuiltinPlugins(nil, cfg.Disabled, machine.binDir)
	return newPlugins(&cfg.Node, host.Options{Specs: specs}, pluginadmin.Options{Client: told}, log)
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
			log.Warnf("%s: only plugins are reloaded while the server runs; the change of %s takes effect at the next start",
				file, strings.Join(changed, ", "))
		}
		apply(now.Plugins)
	}
}

// localStorage is the name of the storage plugin that comes with Kubelith; --disable calls it localStorage +
// "-storage".
const localStorage = "local"

// withBuiltinPlugins adds the plugins that come with Kubelith to those of the configuration. A configured plugin of the
// same name replaces the built-in one.
func withBuiltinPlugins(configured []host.Spec, disabled func(string) bool, binDir string) []host.Spec {
	if disabled(localStorage+"-storage") || slices.ContainsFunc(configured, func(s host.Spec) bool { return s.Name == localStorage }) {
		return configured
	}
	return append(slices.Clip(configured), host.Spec{Spec: pluginprocess.Spec{
		Name: localStorage, Kind: plugins.Storage, Path: filepath.Join(binDir, payload.Local), Source: "Kubelith",
		// To mount and grow file systems, and to remove files of any user's pods.
		Limits: pluginprocess.Limits{Capabilities: []string{"DAC_OVERRIDE", "FOWNER", "SYS_ADMIN", "SYS_RESOURCE"}},
	}})
}

// elsewhere returns the drivers that come with Kubelith and run on agents only, because this server has no kubelet.
func elsewhere(disabled func(string) bool) []storage.Declaration {
	if !disabled("kubelet") || disabled(localStorage+"-storage") {
		return nil
	}
	return []storage.Declaration{storage.Declare(local.CSIDriver(), []*storagev1.StorageClass{local.StorageClass()}, true)}
}

// withoutKubelet also disables what serves pods on a node that has no kubelet.
func withoutKubelet(disabled func(string) bool) func(string) bool {
	return func(name string) bool { return disabled(name) || disabled("kubelet") }
}

// pluginResults returns what an operator should know about the configured plugins.
func pluginResults(cfg *config.Server) []preflight.Result {
	var out []preflight.Result
	if err := trusted(cfg.File, cfg.Plugins); err != nil {
		out = append(out, preflight.Result{Name: "plugins", Status: preflight.Fail, Message: err.Error()})
	}
	for _, p := range config.Shared(cfg.Plugins) {
		out = append(out, preflight.Result{Name: "plugin " + p.Name, Status: preflight.Warn,
			Message: fmt.Sprintf("runs as user %d (%s), which other programs on this host may share: they could read its key",
				*p.Limits.UID, p.Source()),
			Fix: "set limits.uid: auto, which gives it its own user"})
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
