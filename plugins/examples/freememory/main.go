// Command freememory is a scheduling plugin that packs pods by the memory that is actually free on nodes, as pods use
// less than they request, or more. It rejects nodes with less free memory than the pod requests, and prefers the node
// with the least memory left.
//
//	plugins:
//	- name: freememory
//	  kind: scheduling
//	  path: /usr/local/lib/kubelith/freememory
//	  config: {refresh: 15s}
//
// It reads usage from the resource metrics API, with the identity that the host gives it; rbac.yaml grants the right.
package main

import "kubelith.io/kubelith/plugins/sdk"

func main() {
	m := &memory{}
	sdk.ServeScheduling(sdk.Scheduling{
		Version:        "1.0",
		Configure:      m.configure,
		Filter:         m.filter,
		Score:          m.score,
		Weight:         10, // packing must outweigh upstream's LeastAllocated and BalancedAllocation, which spread
		Needs:          &sdk.NodeFields{Allocatable: true, Requested: true},
		FilterUsesPods: true,
		Metrics:        m.metrics,
	})
}
