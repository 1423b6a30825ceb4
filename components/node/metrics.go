package node

import (
	"kubelith.io/kubelith/components/apiserver"
	"kubelith.io/kubelith/components/client"
	"kubelith.io/kubelith/components/config"
	"kubelith.io/kubelith/components/election"
	"kubelith.io/kubelith/components/lifecycle"
	"kubelith.io/kubelith/components/metrics"
)

// resourceMetrics is the component of the resource metrics API, and what it adds to the apiserver.
type resourceMetrics struct {
	lifecycle.Component
	extension *apiserver.Extension
}

// newMetrics returns metrics-server or, when it is disabled, what cleans up after it.
func newMetrics(cfg *config.Server, e *election.Election, api *client.InProcess, o metrics.Options) resourceMetrics {
	if cfg.Disabled("metrics-server") {
		o.Client = e.Fence(api).Config(client.Metrics)
		return resourceMetrics{Component: e.Elect(metrics.NewCleaner(o))}
	}
	o.Client = api.Config(client.Metrics)
	s := metrics.New(o)
	return resourceMetrics{s, &apiserver.Extension{Scheme: metrics.Scheme(), Install: s.Install}}
}
