package results

import "io"

// The stages of bench/scale, in place of a cluster.
const (
	ScaleEmpty  = "server alone"
	ScaleNodes  = "hollow nodes"
	ScaleMaking = "pods being made"
	ScalePods   = "nodes and pods, idle"
)

// Figures of bench/scale.
const (
	NodesReady     = "nodes made to all Ready (s)"
	PodsScheduled  = "pods made and scheduled per second"
	PodsRunning    = "pods made to all Running (s)"
	ServerMemory   = "anonymous memory of the server at the end (MB)"
	ServerPeak     = "the most it had (MB)"
	ServerCPU      = "CPU of the server (% of a core)"
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

// RequestP99 is the figure of all requests with a verb.
func RequestP99(verb string) string { return "all " + verb + " requests, p99 (ms)" }

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
}
