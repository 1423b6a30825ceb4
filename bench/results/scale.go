package results

import (
	"fmt"
	"io"
)

// The stages of bench/scale, in place of a cluster.
const (
	ScaleEmpty  = "server alone"
	ScaleNodes  = "hollow nodes"
	ScaleMaking = "pods being made"
	ScalePods   = "nodes and pods, idle"
)

// Figures of bench/scale.
const (
	NodesReady    = "nodes made to all Ready (s)"
	PodsScheduled = "pods scheduled per second"
	PodsReady     = "pods Ready per second"
	ServerMemory  = "anonymous memory of the server (MB)"
	ServerCPU     = "CPU of the server (% of a core)"
	GetP99        = "GET of a ConfigMap, p99 (ms)"
	UpdateP99     = "update of a ConfigMap, p99 (ms)"
	ListP99       = "LIST of 500 pods, p99 (ms)"
)

// ScaleTable writes the markdown of docs/performance.md about many nodes.
func ScaleTable(w io.Writer, s *Store) {
	stages := []string{ScaleEmpty, ScaleNodes, ScaleMaking, ScalePods}
	fmt.Fprint(w, "| figure |")
	for _, stage := range stages {
		fmt.Fprintf(w, " %s |", stage)
	}
	fmt.Fprint(w, "\n|---|---|---|---|---|\n")
	for _, figure := range []string{ServerMemory, ServerCPU, GetP99, UpdateP99, ListP99, NodesReady, PodsScheduled, PodsReady} {
		fmt.Fprintf(w, "| %s |", figure)
		for _, stage := range stages {
			fmt.Fprintf(w, " %s |", cell(s.Values(stage, figure)))
		}
		fmt.Fprintln(w)
	}
}
