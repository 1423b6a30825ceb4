// Package kinds has all kinds of plugins together: what plugins/host, which knows none of them, is to be told.
package kinds

import (
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
)

// Validators refuse descriptions that a kind cannot work with.
func Validators() map[plugins.Kind]func(string, *pluginv1.Description) error {
	return map[plugins.Kind]func(string, *pluginv1.Description) error{
		plugins.Admission:  admission.Validate,
		plugins.Scheduling: scheduling.Validate,
		plugins.Storage:    storage.Validate,
	}
}
