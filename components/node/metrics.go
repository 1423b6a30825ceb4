package node

import (
	"kubelith.io/kubelith/components/apiserver"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/metrics"
)

// resourceMetrics is the component of the resource metrics API, and what it adds to the apiserver.
type resourceMetrics struct {
	lifecycle.Component
	extension *apiserver.Extension
}

// newMetrics returns metrics-server or, when it is disabled, what cleans up after it.
func newMetrics(cfg *config.Server, o metrics.Options) resourceMetrics {
	if cfg.Disabled("metrics-server") {
		return resourceMetrics{Component: metrics.NewCleaner(o)}
	}
	s := metrics.New(o)
	return resourceMetrics{s, &apiserver.Extension{Scheme: metrics.Scheme(), Install: s.Install}}
}
