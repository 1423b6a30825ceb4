package pluginadmin

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"kubelith.io/kubelith/plugins"
	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

const (
	// collectTimeout bounds the calls of plugins for their metrics, and so how much they delay /metrics.
	collectTimeout = time.Second
	// ownPrefix begins the names of plugins' own metrics. Without it, a plugin could reuse the name of one of the
	// server's metrics with another type or help, which would break /metrics.
	ownPrefix = "kubelith_plugin_own_"
	// maxOwnSeries is the number of series of one plugin; further ones are dropped, to bound the server's memory.
	maxOwnSeries = 2000
	// The parser needs a hundred times the memory of short lines, so the text is limited too. A histogram has many
	// lines per series.
	maxOwnText  = 1 << 20 // bytes
	maxOwnLines = 20 * maxOwnSeries
)

// ownMetrics collects the plugins' own metrics by their RPC Metrics.
type ownMetrics struct {
	ctx  context.Context // of the component: Collect gets none
	host Host
	log  logrus.FieldLogger

	mu      sync.Mutex
	none    map[string]uint64 // by plugin: the generation that answered that it has none
	refused map[string]string // by plugin: the last reason that was logged
}

func newOwnMetrics(ctx context.Context, h Host, log logrus.FieldLogger) *ownMetrics {
	return &ownMetrics{ctx: ctx, host: h, log: log, none: map[string]uint64{}, refused: map[string]string{}}
}

func (m *ownMetrics) collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(m.ctx, collectTimeout)
	defer cancel()
	var all []plugins.Plugin
	for _, kind := range plugins.Kinds {
		all = append(all, m.host.Plugins(kind)...)
	}
	answers := make([]map[string]*dto.MetricFamily, len(all))
	var calls sync.WaitGroup
	for i, p := range all {
		calls.Go(func() { answers[i] = m.ask(ctx, p) })
	}
	calls.Wait()
	var accepted series
	for i, families := range answers {
		own := seriesOf(families, all[i].Name())
		if err := (append(accepted[:len(accepted):len(accepted)], own...)).consistent(); err != nil {
			m.refuse(all[i].Name(), err)
			continue
		}
		accepted = append(accepted, own...)
	}
	accepted.Collect(out)
}

// refuse logs why metrics of a plugin are left out, once per reason.
func (m *ownMetrics) refuse(plugin string, err error) {
	text := strings.ReplaceAll(err.Error(), "\n", " ")
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refused[plugin] == text {
		return
	}
	m.refused[plugin] = text
	m.log.WithField("plugin", plugin).Warnf("the plugin's own metrics are left out: %s", text)
}

// ask returns the plugin's metrics; nil if it has none, does not answer in time, or its answer cannot be parsed.
func (m *ownMetrics) ask(ctx context.Context, p plugins.Plugin) map[string]*dto.MetricFamily {
	var text []byte
	var generation uint64
	err := p.Call(ctx, "Metrics", func(ctx context.Context, i plugins.Instance) error {
		if generation = i.Generation; m.withoutMetrics(p.Name()) == generation {
			return nil
		}
		answer, err := pluginv1.NewPluginClient(i.Conn).Metrics(ctx, &pluginv1.MetricsRequest{})
		text = answer.GetText()
		return err
	})
	if status.Code(err) == codes.Unimplemented {
		m.mu.Lock()
		m.none[p.Name()] = generation
		m.mu.Unlock()
	}
	if err != nil || len(text) == 0 {
		return nil
	}
	families, err := parseOwn(text)
	if err != nil {
		m.refuse(p.Name(), err)
		return nil
	}
	return families
}

// parseOwn parses the answer of a plugin.
func parseOwn(text []byte) (map[string]*dto.MetricFamily, error) {
	if len(text) > maxOwnText {
		return nil, fmt.Errorf("they are %d bytes, more than %d KiB", len(text), maxOwnText>>10)
	}
	if n := bytes.Count(text, []byte{'\n'}); n > maxOwnLines {
		return nil, fmt.Errorf("they have %d lines, more than %d", n, maxOwnLines)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	return parser.TextToMetricFamilies(bytes.NewReader(text))
}

// withoutMetrics returns the generation of a plugin's process that has no metrics; 0: none.
func (m *ownMetrics) withoutMetrics(plugin string) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.none[plugin]
}

// series are metrics of plugins with the label plugin.
type series []prometheus.Metric

var _ prometheus.Collector = series{}

func seriesOf(families map[string]*dto.MetricFamily, plugin string) series {
	var out series
	for _, name := range slices.Sorted(maps.Keys(families)) {
		desc := prometheus.NewDesc(ownPrefix+name, families[name].GetHelp(), nil, nil)
		for _, read := range families[name].GetMetric() {
			if len(out) == maxOwnSeries {
				return out
			}
			label := "plugin"
			read.Label = append(slices.DeleteFunc(read.Label, func(l *dto.LabelPair) bool { return l.GetName() == label }),
				&dto.LabelPair{Name: &label, Value: &plugin})
			slices.SortFunc(read.Label, func(a, b *dto.LabelPair) int { return strings.Compare(a.GetName(), b.GetName()) })
			read.TimestampMs = nil
			out = append(out, own{desc, read})
		}
	}
	return out
}

// consistent returns an error if types, help texts or labels of the series contradict each other.
func (s series) consistent() error {
	registry := prometheus.NewRegistry()
	if err := registry.Register(s); err != nil {
		return err
	}
	_, err := registry.Gather()
	return err
}

// Describe implements prometheus.Collector. The series are not known in advance.
func (series) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s series) Collect(out chan<- prometheus.Metric) {
	for _, metric := range s {
		out <- metric
	}
}

// own is one of these series.
type own struct {
	desc *prometheus.Desc
	read *dto.Metric
}

// Desc implements prometheus.Metric.
func (o own) Desc() *prometheus.Desc { return o.desc }

// Write implements prometheus.Metric.
func (o own) Write(out *dto.Metric) error {
	out.Label, out.Gauge, out.Counter, out.Summary, out.Untyped, out.Histogram =
		o.read.Label, o.read.Gauge, o.read.Counter, o.read.Summary, o.read.Untyped, o.read.Histogram
	return nil
}
