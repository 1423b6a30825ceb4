package node

import (
	"github.com/sirupsen/logrus"
	"k8s.io/client-go/rest"

	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/logging"
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/host"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/storage"
)

// agentPlugins are the plugins of an agent: the storage plugin that comes with Kubelith, and those in its plugins/storage.
func agentPlugins(cfg *config.Agent, machine *machine, log *logrus.Logger) *host.Host {
	return host.New(host.Options{
		Specs:    withBuiltinPlugins(nil, cfg.Disabled, machine.binDir),
		DataDir:  cfg.DataDir,
		RunDir:   cfg.RunDir,
		NodeName: cfg.NodeName,
		Validate: map[plugins.Kind]func(string, *pluginv1.Description) error{plugins.Storage: storage.Validate},
		Log:      logging.Component(log, "plugins"),
	})
}

// actingAs is the node's way to the API under another name, which its rights allow it (components/apiserver).
func actingAs(name string, node *rest.Config) *rest.Config {
	c := rest.CopyConfig(node)
	c.Impersonate = rest.ImpersonationConfig{UserName: name}
	return c
}
