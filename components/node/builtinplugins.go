package node

import (
	"path/filepath"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/host"
	pluginprocess "kubelith.io/kubelith/plugins/process"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/runtime/payload"
)

// localStorage is the name of the storage plugin that comes with Kubelith; --disable calls it localStorage +
// "-storage".
const localStorage = "local"

// withBuiltinPlugins adds the plugins that come with Kubelith to those of the configuration. A configured plugin of the
// same name replaces the built-in one.
func withBuiltinPlugins(configured []host.Spec, disabled func(string) bool, binDir string) []host.Spec {
	if disabled(localStorage+"-storage") || slices.ContainsFunc(configured, func(s host.Spec) bool { return s.Name == localStorage }) {
		return configured
	}
	return append(slices.Clip(configured), host.Spec{Builtin: true, Spec: pluginprocess.Spec{
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
