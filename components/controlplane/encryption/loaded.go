package encryption

import (
	"github.com/prometheus/client_golang/prometheus"
)

// loadedMetric is upstream's metric for the file that an API server uses.
// Source: k8s.io/apiserver/pkg/server/options/encryptionconfig/metrics/metrics.go.
const loadedMetric, hashLabel = "apiserver_encryption_config_controller_last_config_info", "hash"

// LoadedBy returns Options.Loaded for the API server whose metrics are gathered.
func LoadedBy(metrics prometheus.Gatherer) func(hash string) bool {
	return func(hash string) bool {
		all, _ := metrics.Gather() // with what could be gathered
		for _, family := range all {
			if family.GetName() != loadedMetric {
				continue
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if l.GetName() == hashLabel && l.GetValue() == hash {
						return true
					}
				}
			}
		}
		return false
	}
}
