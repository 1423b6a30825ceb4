package node

import (
	"path/filepath"

	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/control"
	"kubelith.io/kubelith/plugins/host"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/storage"
)

// agentPlugins returns what runs the plugins of an agent, the storage plugin that comes with Kubelith and those in its
// plugins/storage, and what an operator sees of them; told is the way to the API to tell of them, as the node.
func agentPlugins(cfg *config.Agent, machine *machine, told *rest.Config, log *logrus.Logger) (*host.Host, *control.Server) {
	observer, entry := control.NewObserver(), logging.Component(log, "plugins")
	h := host.New(host.Options{
		Specs:    withBuiltinPlugins(nil, cfg.Disabled, machine.binDir),
		DataDir:  cfg.DataDir,
		RunDir:   cfg.RunDir,
		NodeName: cfg.NodeName,
		Validate: map[plugins.Kind]func(string, *pluginv1.Description) error{plugins.Storage: storage.Validate},
		Observe:  observer,
		Log:      entry,
	})
	return h, control.New(control.Options{
		Host:     h,
		Observer: observer,
		Socket:   filepath.Join(cfg.RunDir, control.SocketName),
		NodeName: cfg.NodeName,
		Client:   told,
		Register: legacyregistry.Registerer(),
		Log:      entry,
	})
}

// actingAs is the node's way to the API under another name, which its rights allow it (components/apiserver).
func actingAs(name string, node *rest.Config) *rest.Config {
	c := rest.CopyConfig(node)
	c.Impersonate = rest.ImpersonationConfig{UserName: name}
	return c
}
