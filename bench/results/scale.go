package results

import (
	"fmt"
	"io"
)

// The stages of bench-scale. With that of another cluster than Kubelith, ScaleColumn is in place of a cluster.
const (
	ScaleEmpty  = "server alone"
	ScaleNodes  = "hollow nodes"
	ScaleMaking = "pods being made"
	ScalePods   = "nodes and pods, idle"
)

// Metrics of bench-scale.
const (
	NodesReady     = "nodes made to all Ready (s)"
	PodsScheduled  = "pods made and scheduled per second"
	PodsRunning    = "pods made to all Running (s)"
	ServerMemory   = "anonymous memory at the end (MB)"
	ServerPeak     = "the most it had (MB)"
	ServerCPU      = "CPU without kwok (% of a core)"
	KwokCPU        = "CPU of kwok (% of a core)"
	GetP99         = "GET of a ConfigMap, p99 (ms)"
	UpdateP99      = "update of a ConfigMap, p99 (ms)"
	WatchP99       = "update of a ConfigMap until a watch has seen it, p99 (ms)"
	ListP99        = "LIST of 500 pods, p99 (ms)"
	RequestRate    = "requests per second"
	RequestsFailed = "requests answered with 429 or 5xx"
	NodesLost      = "nodes not Ready at the end"
	DatabaseSize   = "etcd's database (MB)"
)

// Verbs are those whose requests end soon, as apiserver_request_duration_seconds has them.
var Verbs = []string{"GET", "LIST", "POST", "PUT", "PATCH", "DELETE"}

// RequestP99 is the metric of all requests with a verb.
func RequestP99(verb string) string { return "all " + verb + " requests, p99 (ms)" }

// ScaleColumn is a stage of a cluster.
func ScaleColumn(cluster, stage string) string {
	if cluster == Kubelith {
		return stage
	}
	return cluster + ": " + stage
}

// scaleRow is a metric in a stage, and its goal: the least ratio to the product where more is better, else the largest.
type scaleRow struct {
	figure, stage string
	goal          float64
	more          bool
}

func scaleRows() []scaleRow {
	return []scaleRow{
		{PodsScheduled, ScaleMaking, 2, true}, {PodsRunning, ScaleMaking, 0, false},
		{GetP99, ScaleMaking, 1, false}, {UpdateP99, ScaleMaking, 1, false}, {WatchP99, ScaleMaking, 1, false}, {ListP99, ScaleMaking, 1, false},
		{ServerCPU, ScaleMaking, 0, false}, {ServerPeak, ScaleMaking, 0, false}, {ServerMemory, ScalePods, 0.6, false}, {ServerCPU, ScalePods, 0, false},
	}
}

// scaleCompareTable writes the markdown about many nodes beside separate processes.
func scaleCompareTable(w io.Writer, s *Store) {
	fmt.Fprintf(w, "| metric | stage | Kubelith | composition | product | ratio to product | goal | met |\n|---|---|---|---|---|---|---|---|\n")
	for _, r := range scaleRows() {
		of := func(cluster string) []float64 { return s.Values(ScaleColumn(cluster, r.stage), r.figure) }
		k, c, p := of(Kubelith), of(Composition), of(Product)
		goal, met := "", ""
		if r.goal > 0 {
			sign, value := "<=", Median(k)/Median(p)
			ok := value <= r.goal
			if r.more {
				sign, ok = ">=", value >= r.goal
			}
			goal, met = fmt.Sprintf("%s %.1f", sign, r.goal), verdict(ok, len(k) > 0 && len(p) > 0)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.figure, r.stage, cell(k), cell(c), cell(p), ratio(k, p), goal, met)
	}
}

// ScaleTable writes the markdown of docs/performance.md about many nodes.
func ScaleTable(w io.Writer, s *Store) {
	figures := []string{
		NodesReady, PodsScheduled, PodsRunning, ServerMemory, ServerPeak, DatabaseSize, ServerCPU, KwokCPU, RequestRate, RequestsFailed, NodesLost,
		GetP99, UpdateP99, WatchP99, ListP99,
	}
	for _, verb := range Verbs {
		figures = append(figures, RequestP99(verb))
	}
	writeRows(w, s, []string{ScaleEmpty, ScaleNodes, ScaleMaking, ScalePods}, figures)
	fmt.Fprintln(w)
	scaleCompareTable(w, s)
}
