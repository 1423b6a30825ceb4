// Command freememory is a scheduling plugin that packs pods by the memory that nodes really have free, which requests do
// not tell: pods use less than they ask for, or more. It refuses a node whose free memory a pod's request does not fit into,
// and prefers, of those it fits into, the one with the least left.
//
//	plugins:
//	- name: freememory
//	  kind: scheduling
//	  path: /usr/local/lib/kubelith/freememory
//	  config: {refresh: 15s}
//
// What nodes use it asks the resource metrics API, with the identity that the host gives it (rbac.yaml lets it).
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
