package policy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/validation"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"kubelith.io/kubelith/components/cluster/scheduler/removed"
)

// Translation is a policy in the words of today.
type Translation struct {
	// YAML is a KubeSchedulerConfiguration, with comments.
	YAML []byte
	// Config is what upstream reads from it.
	Config *config.KubeSchedulerConfiguration
	// Notes are what the policy requests and does not get, a sentence each.
	Notes []string
}

// document has the fields of a KubeSchedulerConfiguration that a policy sets. Upstream's type would print all others.
type document struct {
	APIVersion string              `json:"apiVersion"`
	Kind       string              `json:"kind"`
	Extenders  []configv1.Extender `json:"extenders,omitempty"`
	Profiles   []profile           `json:"profiles"`
}

type profile struct {
	SchedulerName string         `json:"schedulerName"`
	Plugins       plugins        `json:"plugins"`
	PluginConfig  []pluginConfig `json:"pluginConfig,omitempty"`
}

type plugins struct {
	MultiPoint configv1.PluginSet `json:"multiPoint"`
	PreScore   configv1.PluginSet `json:"preScore"`
	Score      configv1.PluginSet `json:"score"`
}

type pluginConfig struct {
	Name string `json:"name"`
	Args any    `json:"args"`
}

// finish writes the configuration and lets upstream read and check it.
func (t *translation) finish(extenders []configv1.Extender) (*Translation, error) {
	defaults, err := latest.Default()
	if err != nil {
		return nil, err
	}
	all := []configv1.Plugin{{Name: "*"}}
	out := plugins{MultiPoint: configv1.PluginSet{Disabled: all}, PreScore: configv1.PluginSet{Disabled: all}, Score: configv1.PluginSet{Disabled: all}}
	for _, name := range t.order(defaults.Profiles[0].Plugins.MultiPoint.Enabled) {
		out.MultiPoint.Enabled = append(out.MultiPoint.Enabled, configv1.Plugin{Name: name})
	}
	for _, s := range scorers() {
		weight := t.weights[s.name]
		if weight == 0 {
			continue
		}
		if s.prepares {
			out.PreScore.Enabled = append(out.PreScore.Enabled, configv1.Plugin{Name: s.name})
		}
		out.Score.Enabled = append(out.Score.Enabled, configv1.Plugin{Name: s.name, Weight: ptr.To(int32(weight))})
	}
	p := profile{SchedulerName: corev1.DefaultSchedulerName, Plugins: out}
	for name, args := range t.config {
		p.PluginConfig = append(p.PluginConfig, pluginConfig{name, args})
	}
	slices.SortFunc(p.PluginConfig, func(a, b pluginConfig) int { return strings.Compare(a.Name, b.Name) })
	text, err := yaml.Marshal(document{
		APIVersion: configv1.SchemeGroupVersion.String(), Kind: "KubeSchedulerConfiguration", Extenders: extenders, Profiles: []profile{p},
	})
	if err != nil {
		return nil, err
	}
	text = append([]byte(t.comments()), text...)
	cfg, err := read(text)
	if err != nil {
		return nil, err
	}
	return &Translation{YAML: text, Config: cfg, Notes: t.notes}, nil
}

// order returns the plugins that do not score, in upstream's order. Those that are neither a predicate nor a priority,
// such as the binding of pods, stay as they are by default.
func (t *translation) order(defaults []config.Plugin) []string {
	named := map[string]bool{}
	for _, filters := range predicates() {
		for _, name := range filters {
			named[name] = true
		}
	}
	for _, s := range scorers() {
		named[s.name] = true
	}
	var all []string
	for _, p := range defaults {
		if t.filters[p.Name] || !named[p.Name] {
			all = append(all, p.Name)
		}
	}
	for _, name := range []string{removed.NodeLabel, removed.ServiceAffinity} {
		if t.filters[name] {
			all = append(all, name)
		}
	}
	return all
}

func (t *translation) comments() string {
	var b strings.Builder
	b.WriteString("# Translated from a scheduler policy by kubelith scheduler-policy.\n")
	if ours := t.ours(); ours != "" {
		fmt.Fprintf(&b, "# kube-scheduler no longer has these plugins, Kubelith does: %s.\n", ours)
	}
	for _, note := range t.notes {
		fmt.Fprintf(&b, "# %s.\n", note)
	}
	return b.String()
}

// read is what upstream does with a file of --config.
func read(text []byte) (*config.KubeSchedulerConfiguration, error) {
	object, kind, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, err
	}
	cfg, ok := object.(*config.KubeSchedulerConfiguration)
	if !ok {
		return nil, fmt.Errorf("translated to a %s", kind)
	}
	cfg.APIVersion = kind.GroupVersion().String()
	if errs := validation.ValidateKubeSchedulerConfiguration(cfg); errs != nil {
		return nil, errs.Errors()[0]
	}
	return cfg, nil
}
