package node

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	"kubelith.io/kubelith/plugins/control"
	"kubelith.io/kubelith/plugins/host"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
)

// newPlugins returns what runs the plugins, and what an operator sees of them.
func newPlugins(cfg *config.Server, machine *machine, inProcess *client.InProcess, log *logrus.Logger) (*host.Host, *control.Server) {
	observer, entry := control.NewObserver(), logging.Component(log, "plugins")
	specs := func(all []config.Plugin) []host.Spec {
		return withBuiltinPlugins(pluginSpecs(all), withoutKubelet(cfg.Disabled), machine.binDir)
	}
	h := host.New(host.Options{
		Specs:    specs(cfg.Plugins),
		DataDir:  cfg.DataDir,
		RunDir:   cfg.RunDir,
		NodeName: cfg.NodeName,
		Validate: map[plugins.Kind]func(string, *pluginv1.Description) error{
			plugins.Admission: admission.Validate, plugins.Scheduling: scheduling.Validate, plugins.Storage: storage.Validate,
		},
		Observe:     observer,
		Credentials: machine.pluginUsers.credentials(machine.pki.ClusterCA, cfg.URL()),
		Log:         entry,
	})
	return h, control.New(control.Options{
		Host:     h,
		Observer: observer,
		Socket:   filepath.Join(cfg.RunDir, control.SocketName),
		NodeName: cfg.NodeName,
		Client:   inProcess.Config(client.Plugins),
		File:     cfg.File,
		Reload:   reloadPlugins(cfg.File, func(all []config.Plugin) { h.Apply(specs(all)) }, entry),
		Register: legacyregistry.Registerer(),
		Log:      entry,
	})
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
			Limits:   host.Limits{Memory: memory, MilliCPU: cpu, PIDs: p.Limits.PIDs, UID: p.Limits.UID, GID: p.Limits.GID},
			Source:   p.Source(),
		})
	}
	return out
}

// reloadPlugins returns what is done when the configuration file has changed: apply gets its plugins.
func reloadPlugins(file string, apply func([]config.Plugin), log logrus.FieldLogger) func() {
	var before *config.Server
	return func() {
		now, changed, err := config.Reload(file, before)
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
