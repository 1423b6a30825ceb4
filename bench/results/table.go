package results

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Names of the metrics. Times are seconds, memory is MB of 10^6 bytes.
const (
	ColdReady    = "start to node Ready, cold (s)"
	WarmReady    = "start to node Ready, warm (s)"
	FirstPod     = "cold start to first pod Ready (s)"
	OnePod       = "one pod, create to Ready (s)"
	FiftyPods    = "50 pods in one Deployment to Ready (s)"
	FiftyMinus   = "50 pods minus the floor (s)"
	FiftyGone    = "deleting 50 pods until their objects are gone (s)"
	FiftyFloor   = "floor of 50 pods: runc, shim and CNI alone (s)"
	IdleMemory   = "anonymous memory, idle with 10 pods (MB)"
	PodMemory    = "anonymous memory per further pod (MB)"
	IdleCPU      = "CPU while idle with 10 pods (s per 300 s)"
	ColdCPU      = "CPU from start to first pod Ready (s)"
	FiftyCPU     = "CPU for 50 pods (s)"
	FloorCPU     = "CPU of the floor of 50 pods (s)"
	GetInProcess = "CPU per 1,000 GETs of a pod in the process (ms)"
	GetTLS       = "CPU per 1,000 GETs of a pod over TLS (ms)"
	PutInProcess = "CPU per 1,000 updates in the process (ms)"
	PutTLS       = "CPU per 1,000 updates over TLS (ms)"
)

// goal of a metric, as the ratio to the product (or to TLS) that must not be exceeded.
type row struct {
	figure string
	goal   float64 // 0: none
}

func rows() []row {
	return []row{
		{ColdReady, 0.6}, {WarmReady, 0.4}, {FirstPod, 0}, {OnePod, 0.4}, {FiftyPods, 0.5}, {FiftyMinus, 0}, {FiftyGone, 0.5},
		{IdleMemory, 0.5}, {PodMemory, 0.5}, {IdleCPU, 0.4}, {ColdCPU, 0}, {FiftyCPU, 0.5},
	}
}

// sizeGoal is the packed size of the executable that must not be exceeded, in MB of 10^6 bytes.
const sizeGoal = 81

// Table writes the markdown of docs/performance.md. packed is the size of `zstd -19` in bytes, 0 when unknown.
func Table(w io.Writer, s *Store, packed int64) {
	fmt.Fprintf(w, "| metric | Kubelith | composition | product | ratio to composition | ratio to product | goal | met |\n")
	fmt.Fprintf(w, "|---|---|---|---|---|---|---|---|\n")
	for _, r := range rows() {
		k, c, p := s.figure(Kubelith, r.figure), s.figure(Composition, r.figure), s.figure(Product, r.figure)
		if len(k)+len(c)+len(p) == 0 {
			continue
		}
		goal, met := "", ""
		if r.goal > 0 {
			goal, met = fmt.Sprintf("<= %.1f", r.goal), verdict(Median(k)/Median(p) <= r.goal, len(k) > 0 && len(p) > 0)
		}
		fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %s | %s | %s |\n", r.figure, cell(k), cell(c), cell(p), ratio(k, c), ratio(k, p), goal, met)
	}
	if packed > 0 {
		mb := float64(packed) / 1e6
		fmt.Fprintf(w, "| executable, packed with zstd -19 (MB) | %.1f | | | | | <= %d | %s |\n", mb, sizeGoal, verdict(mb <= sizeGoal, true))
	}
	fmt.Fprintf(w, "\n| requests to the apiserver, client included | in the process | over TLS | ratio |\n|---|---|---|---|\n")
	for _, r := range [][2]string{{GetInProcess, GetTLS}, {PutInProcess, PutTLS}} {
		if in, tls := s.Values(Kubelith, r[0]), s.Values(Kubelith, r[1]); len(in) > 0 {
			fmt.Fprintf(w, "| %s | %s | %s | %s |\n", strings.Replace(r[0], " in the process", "", 1), cell(in), cell(tls), ratio(in, tls))
		}
	}
	fmt.Fprintf(w, "\nFloor of 50 pods (runc, shim and CNI programs alone): %s s, %s s of CPU.\n", cell(s.Values(Floor, FiftyFloor)), cell(s.Values(Floor, FloorCPU)))
	fmt.Fprintf(w, "Medians of %d rounds (idle: %d); [a-b] is the interval that holds the median with at least 95 %%: order\nstatistics for metrics, bootstrap for ratios.\n",
		s.Rounds("pods", Kubelith), s.Rounds("idle", Kubelith))
	for _, cluster := range []string{Kubelith, Composition, Product} {
		for _, figure := range []string{IdleMemory, IdleCPU, FiftyCPU} {
			if d := s.Details(cluster, figure); len(d) > 0 {
				fmt.Fprintf(w, "\n%s, %s: %s\n", cluster, figure, d[0])
			}
		}
	}
}

// writeRows writes a table with a column for each way, cluster or stage, and a row for each metric.
func writeRows(w io.Writer, s *Store, columns, figures []string) {
	fmt.Fprintf(w, "| metric | %s |\n|---%s|\n", strings.Join(columns, " | "), strings.Repeat("|---", len(columns)))
	for _, figure := range figures {
		fmt.Fprintf(w, "| %s |", figure)
		for _, column := range columns {
			fmt.Fprintf(w, " %s |", cell(s.Values(column, figure)))
		}
		fmt.Fprintln(w)
	}
}

// figure is the values of a metric, one per round. The 50 pods minus the floor are computed from the
// floor's median: single rounds of it vary less than the clusters' do.
func (s *Store) figure(cluster, figure string) []float64 {
	if figure != FiftyMinus {
		return s.Values(cluster, figure)
	}
	floor := Median(s.Values(Floor, FiftyFloor))
	if math.IsNaN(floor) {
		return nil
	}
	var out []float64
	for _, v := range s.Values(cluster, FiftyPods) {
		out = append(out, v-floor)
	}
	return out
}

// cell is "median [low-high]".
func cell(values []float64) string {
	if len(values) == 0 {
		return ""
	}
	m := Median(values)
	digits := 2
	if m >= 100 {
		digits = 0
	} else if m >= 20 {
		digits = 1
	}
	text := fmt.Sprintf("%.*f", digits, m)
	if low, high, ok := Interval(values); ok {
		text += fmt.Sprintf(" [%.*f-%.*f]", digits, low, digits, high)
	}
	return text
}

func ratio(a, b []float64) string {
	if len(a) == 0 || len(b) == 0 {
		return ""
	}
	text := fmt.Sprintf("%.2f", Median(a)/Median(b))
	if low, high, ok := RatioInterval(a, b); ok {
		text += fmt.Sprintf(" [%.2f-%.2f]", low, high)
	}
	return text
}

func verdict(ok, known bool) string {
	switch {
	case !known:
		return ""
	case ok:
		return "yes"
	}
	return "no"
}
