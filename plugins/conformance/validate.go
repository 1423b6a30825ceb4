package conformance

import (
	"kubelith.io/kubelith/plugins"
	"kubelith.io/kubelith/plugins/admission"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	"kubelith.io/kubelith/plugins/scheduling"
	"kubelith.io/kubelith/plugins/storage"
)

// validators are those of a server: a description that it would refuse is refused here.
func validators() map[plugins.Kind]func(string, *pluginv1.Description) error {
	return map[plugins.Kind]func(string, *pluginv1.Description) error{
		plugins.Admission:  admission.Validate,
		plugins.Scheduling: scheduling.Validate,
		plugins.Storage:    storage.Validate,
	}
}
