// Package render shows timelines: as text for a terminal, as a page for a browser, and for collectors of OpenTelemetry.
package render

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"kubelith.io/kubelith/trace"
	"kubelith.io/kubelith/trace/record"
)

// Failed reports whether a timeline has ended otherwise than requested.
func Failed(t *trace.Timeline) bool {
	return t.Settled && (strings.HasPrefix(t.Outcome, "failed") || strings.HasPrefix(t.Outcome, "refused"))
}

// about describes a stage, beside its name.
var about = map[record.Stage]string{
	record.Request: "the API server", record.Schedule: "the scheduler chooses a node", record.Bind: "the scheduler binds the pod",
	record.Volume: "the CSI driver", record.Sandbox: "pause container and network", record.CNI: "the pod's network",
	record.Pull: "images", record.Create: "containerd creates containers", record.Start: "runc starts containers",
	record.Run: "containers until their end", record.Hook: "lifecycle hooks", record.Probe: "probes", record.Sync: "the kubelet",
	record.Terminate: "the kubelet ends the pod", record.Stop: "containers are stopped", record.StopSandbox: "sandbox and network go",
	trace.Reconcile: "a controller until it acts", trace.Queue: "until the scheduler takes the pod",
	trace.Deliver: "until the kubelet begins", trace.Setup: "the kubelet: cgroups, volumes, secrets",
	trace.Prepare: "the kubelet, between calls for containers", trace.Settle: "probes, and until it is reported",
	trace.Grace: "until the containers have ended",
}

// About describes a stage, beside its name: "the scheduler chooses a node"; empty for one of a request's steps.
func About(stage record.Stage) string { return about[stage] }

// Took is a duration in three digits: 850µs, 9.2ms, 835ms, 1.89s, 12.3s, 1m 02s, 3h 07m.
func Took(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + Took(-d)
	case d == 0:
		return "0"
	case d < 999500*time.Nanosecond:
		return fmt.Sprintf("%dµs", d.Round(time.Microsecond).Microseconds())
	case d < 9950*time.Microsecond:
		return fmt.Sprintf("%.1fms", float64(d)/1e6)
	case d < 999500*time.Microsecond:
		return fmt.Sprintf("%.0fms", float64(d)/1e6)
	case d < 9995*time.Millisecond:
		return fmt.Sprintf("%.2fs", d.Seconds())
	case d < 59950*time.Millisecond:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Hour-500*time.Millisecond:
		s := int(d.Round(time.Second).Seconds())
		return fmt.Sprintf("%dm %02ds", s/60, s%60)
	}
	m := int(d.Round(time.Minute).Minutes())
	return fmt.Sprintf("%dh %02dm", m/60, m%60)
}

// Object names an object as kubectl prints it: deployment/web; with the group where that is not one of Kubernetes.
func Object(r record.Ref) string {
	resource, group, _ := strings.Cut(r.Resource, ".")
	if strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io") {
		return singular(resource) + "." + group + "/" + r.Name
	}
	return singular(resource) + "/" + r.Name
}

// singular is what kubectl calls one object of a plural. API discovery would know; a timeline has plurals only.
func singular(plural string) string {
	switch {
	case plural == "endpoints":
		return plural
	case strings.HasSuffix(plural, "ies"):
		return strings.TrimSuffix(plural, "ies") + "y"
	case strings.HasSuffix(plural, "sses"):
		return strings.TrimSuffix(plural, "es")
	}
	return strings.TrimSuffix(plural, "s")
}

// size is a number of bytes for a reader.
func size(n int64) string {
	units := []string{"kB", "MB", "GB", "TB"}
	f, unit := float64(n), "B"
	for i := 0; f >= 999.5 && i < len(units); i++ {
		f, unit = f/1000, units[i]
	}
	if f < 9.95 && unit != "B" {
		return fmt.Sprintf("%.1f %s", f, unit)
	}
	return fmt.Sprintf("%.0f %s", f, unit)
}

// group is the spans of one object.
type group struct {
	object record.Ref
	node   string
	spans  []*trace.Span // those without a parent, by their begin
	parts  map[int][]*trace.Span
}

// groups returns the objects of a timeline with their spans, in the order in which they appear.
func groups(t *trace.Timeline) []*group {
	var all []*group
	of := map[record.Ref]*group{}
	for i := range t.Spans {
		s := &t.Spans[i]
		g := of[s.Object]
		if g == nil {
			g = &group{object: s.Object, parts: map[int][]*trace.Span{}}
			of[s.Object] = g
			all = append(all, g)
		}
		g.node = cmp.Or(g.node, s.Node)
		if s.Parent != 0 {
			g.parts[s.Parent] = append(g.parts[s.Parent], s)
		} else {
			g.spans = append(g.spans, s)
		}
	}
	for _, g := range all {
		slices.SortStableFunc(g.spans, func(a, b *trace.Span) int { return a.Begin.Compare(b.Begin) })
	}
	return all
}

// took is the time from the begin of its first span to the end of its last one.
func (g *group) took() time.Duration {
	var end time.Time
	for _, s := range g.spans {
		if s.End.After(end) {
			end = s.End
		}
	}
	if len(g.spans) == 0 {
		return 0
	}
	return end.Sub(g.spans[0].Begin)
}

// critical is how much of the critical path is in it.
func (g *group) critical() (d time.Duration) {
	for _, s := range g.spans {
		if s.Critical {
			d += s.Duration()
		}
	}
	return d
}

func (g *group) failed() bool {
	return slices.ContainsFunc(g.spans, func(s *trace.Span) bool { return s.Error != "" })
}

// percentile is that of sorted durations.
func percentile(sorted []time.Duration, p int) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[min(len(sorted)*p/100, len(sorted)-1)]
}
