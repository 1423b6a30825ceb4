package node

import (
	"path/filepath"
	"slices"

	storagev1 "k8s.io/api/storage/v1"

	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/host"
	"kubelith.io/kubelith/plugins/storage"
	"kubelith.io/kubelith/runtime/payload"
)

// localStorage is the name of the storage plugin that comes with Kubelith, and with "-storage" what --disable calls it.
const localStorage = "local"

// withBuiltinPlugins adds the plugins that come with Kubelith to those of the configuration. A plugin of the same
// name there takes the place of ours.
func withBuiltinPlugins(configured []host.Spec, disabled func(string) bool, binDir string) []host.Spec {
	if disabled(localStorage+"-storage") || slices.ContainsFunc(configured, func(s host.Spec) bool { return s.Name == localStorage }) {
		return configured
	}
	return append(slices.Clip(configured), host.Spec{
		Name: localStorage, Kind: plugins.Storage, Path: filepath.Join(binDir, payload.Local),
		Source: "Kubelith", Builtin: true,
		// To mount and to grow file systems, and to remove what pods of any user wrote.
		Limits: host.Limits{Capabilities: []string{"DAC_OVERRIDE", "FOWNER", "SYS_ADMIN", "SYS_RESOURCE"}},
	})
}

// elsewhere are the drivers that come with Kubelith and run on agents alone, as this server has no kubelet.
func elsewhere(disabled func(string) bool) []storage.Declared {
	if !disabled("kubelet") || disabled(localStorage+"-storage") {
		return nil
	}
	return []storage.Declared{{Driver: local.CSIDriver(), Classes: []*storagev1.StorageClass{local.StorageClass()}}}
}

// withoutKubelet has a node without a kubelet do without what is for pods on it.
func withoutKubelet(disabled func(string) bool) func(string) bool {
	return func(name string) bool { return disabled(name) || disabled("kubelet") }
}
