// Command kubelith-local is the storage plugin that comes with Kubelith (plugins/builtin/local). Kubelith starts it.
package main

import (
	storagev1 "k8s.io/api/storage/v1"

	"kubelith.io/kubelith/plugins/builtin/local"
	"kubelith.io/kubelith/plugins/sdk"
)

func main() {
	driver := local.New()
	sdk.ServeStorage(sdk.Storage{
		Version:        local.Version,
		CSIDriver:      local.CSIDriver(),
		StorageClasses: []*storagev1.StorageClass{local.StorageClass()},
		NodeLocal:      true,
		Identity:       driver,
		Controller:     driver,
		Node:           driver,
		Configure: func(c sdk.Config) error {
			var config local.Config
			if err := c.Decode(&config); err != nil {
				return err
			}
			return driver.Open(c.NodeName, c.DataDir, config, c.Log)
		},
	})
}
