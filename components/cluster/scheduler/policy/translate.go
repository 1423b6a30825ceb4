package policy

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"

	"kubelith.io/kubelith/base/suggest"
	"kubelith.io/kubelith/components/cluster/scheduler/removed"
)

// maxWeight is the largest weight that a plugin can have today.
const maxWeight = math.MaxInt32

// translation is what the policy requests, so far.
type translation struct {
	filters map[string]bool
	weights map[string]int64 // of the plugins that score
	labels  removed.NodeLabelArgs
	service removed.ServiceAffinityArgs
	ratio   *RequestedToCapacityRatioArguments
	config  map[string]any // the arguments of plugins
	notes   []string
}

// Translate returns the configuration of a policy.
func Translate(p *Policy) (*Translation, error) {
	t := &translation{filters: map[string]bool{}, weights: map[string]int64{}, config: map[string]any{}}
	for _, name := range mandatoryFilters() {
		t.filters[name] = true
	}
	list := p.Predicates
	if list == nil {
		list = defaultPredicates()
	}
	for i := range list {
		if err := t.predicate(&list[i]); err != nil {
			return nil, err
		}
	}
	t.volumeCounts(list)
	ranks := p.Priorities
	if ranks == nil {
		ranks = defaultPriorities()
	}
	if err := t.priorities(ranks); err != nil {
		return nil, err
	}
	if err := t.labelsPresence(); err != nil {
		return nil, err
	}
	t.capacity()
	if w := p.HardPodAffinitySymmetricWeight; w < 0 || w > 100 {
		return nil, fmt.Errorf("hardPodAffinitySymmetricWeight %d: use 1 to 100", w)
	} else if w > 0 {
		t.config[names.InterPodAffinity] = &configv1.InterPodAffinityArgs{HardPodAffinityWeight: &w}
	}
	if p.AlwaysCheckAllPredicates {
		t.notes = append(t.notes, "alwaysCheckAllPredicates has no effect: pods go where they would, but an event names only the first filter that excluded a node")
	}
	if len(t.labels.PresentLabels)+len(t.labels.AbsentLabels)+len(t.labels.PresentLabelsPreference)+len(t.labels.AbsentLabelsPreference) > 0 {
		t.config[removed.NodeLabel] = &t.labels
	}
	if len(t.service.AffinityLabels)+len(t.service.AntiAffinityLabelsPreference) > 0 {
		t.config[removed.ServiceAffinity] = &t.service
	}
	extenders, err := t.extenders(p.Extenders)
	if err != nil {
		return nil, err
	}
	return t.finish(extenders)
}

// volumeCounts notes predicates that counted the volumes of one driver: there is one filter for all of them.
func (t *translation) volumeCounts(list []Predicate) {
	var one []string
	for _, p := range list {
		if p.Name == allVolumeCounts {
			return
		}
		if slices.Contains(predicates()[p.Name], names.NodeVolumeLimits) {
			one = append(one, p.Name)
		}
	}
	if len(one) > 0 {
		t.notes = append(t.notes, strings.Join(one, ", ")+": the limits of all CSI drivers count, also of those that the policy does not name")
	}
}

func (t *translation) predicate(p *Predicate) error {
	wrong := func(format string, args ...any) error {
		return at(p.Line, "predicate %q: %s", p.Name, fmt.Sprintf(format, args...))
	}
	known := predicates()
	filters, ok := known[p.Name]
	if p.Argument == nil {
		if !ok {
			return wrong("%s", unknown(p.Name, slices.Collect(maps.Keys(known)), "serviceAffinity or labelsPresence"))
		}
		for _, name := range filters {
			t.filters[name] = true
		}
		return nil
	}
	if (p.Argument.ServiceAffinity == nil) == (p.Argument.LabelsPresence == nil) {
		return wrong("the argument must be either serviceAffinity or labelsPresence")
	}
	if len(filters) > 0 {
		return wrong("this name takes no argument: use another name, or leave the argument out")
	}
	if a := p.Argument.ServiceAffinity; a != nil {
		if len(a.Labels) > 0 {
			t.filters[removed.ServiceAffinity] = true
			t.service.AffinityLabels = append(t.service.AffinityLabels, a.Labels...)
		}
		return labelKeys(a.Labels, wrong)
	}
	a := p.Argument.LabelsPresence
	if a.Presence {
		t.labels.PresentLabels = append(t.labels.PresentLabels, a.Labels...)
	} else {
		t.labels.AbsentLabels = append(t.labels.AbsentLabels, a.Labels...)
	}
	return labelKeys(a.Labels, wrong)
}

// unknown is the error for an unknown name without an argument.
func unknown(name string, known []string, arguments string) string {
	if advice := gone()[name]; advice != "" {
		return "Kubernetes has no counterpart: " + advice
	}
	if near := suggest.Nearest(name, known); near != "" {
		return "Kubernetes 1.22 had no such name" + near
	}
	return "Kubernetes has no counterpart, and 1.22 had no such name: correct it, remove it, or give it the argument " + arguments
}

func labelKeys(keys []string, wrong func(string, ...any) error) error {
	for _, key := range keys {
		if why := validation.IsQualifiedName(key); len(why) > 0 {
			return wrong("%q is not the key of a label: %s", key, why[0])
		}
	}
	return nil
}

// priorities adds the plugins that score. Of two priorities of one name the last one counts, as it did.
func (t *translation) priorities(list []Priority) error {
	weights := map[string]int64{} // of SelectorSpreadPriority and EvenPodsSpreadPriority, which share a plugin
	custom := map[string]*Priority{}
	for i := range list {
		p := &list[i]
		wrong := func(format string, args ...any) error {
			return at(p.Line, "priority %q: %s", p.Name, fmt.Sprintf(format, args...))
		}
		if p.Weight < 1 || p.Weight > maxWeight {
			return wrong("weight %d: use 1 to %d", p.Weight, maxWeight)
		}
		if p.Argument != nil {
			if err := t.custom(p, custom, wrong); err != nil {
				return err
			}
			continue
		}
		known := priorities()
		plugin, ok := known[p.Name]
		switch {
		case p.Name == capacityRatio:
			return wrong("the argument requestedToCapacityRatioArguments is missing")
		case !ok:
			return wrong("%s", unknown(p.Name, slices.Collect(maps.Keys(known)), "serviceAntiAffinity, labelPreference or requestedToCapacityRatioArguments"))
		case p.Name == "ServiceSpreadingPriority":
			weights[selectorSpread] = p.Weight
		case plugin == names.PodTopologySpread:
			weights[p.Name] = p.Weight
		case plugin != "":
			t.weights[plugin] = p.Weight
		}
	}
	for plugin, n := range map[string]int{
		removed.NodeLabel:       len(t.labels.PresentLabelsPreference) + len(t.labels.AbsentLabelsPreference),
		removed.ServiceAffinity: len(t.service.AntiAffinityLabelsPreference),
	} { // one plugin scores the mean for all labels
		if t.weights[plugin] *= int64(n); t.weights[plugin] > maxWeight {
			return fmt.Errorf("priorities: the sum of the weights of all labels is %d: use at most %d", t.weights[plugin], maxWeight)
		}
	}
	t.spread(weights)
	return nil
}

// custom adds a priority with an argument. There may be several of a kind, with one weight.
func (t *translation) custom(p *Priority, earlier map[string]*Priority, wrong func(string, ...any) error) error {
	a := p.Argument
	var kinds []string
	for kind, set := range map[string]bool{
		"serviceAntiAffinity": a.ServiceAntiAffinity != nil, "labelPreference": a.LabelPreference != nil,
		"requestedToCapacityRatioArguments": a.RequestedToCapacityRatioArguments != nil,
	} {
		if set {
			kinds = append(kinds, kind)
		}
	}
	if len(kinds) != 1 {
		return wrong("the argument must be one of serviceAntiAffinity, labelPreference and requestedToCapacityRatioArguments")
	}
	if _, ok := priorities()[p.Name]; ok {
		return wrong("this name takes no argument: use another name, or leave the argument out")
	}
	if first := earlier[kinds[0]]; first != nil && a.RequestedToCapacityRatioArguments != nil {
		return wrong("a policy has one priority with %s, and %q in line %d is one", kinds[0], first.Name, first.Line)
	} else if first != nil && first.Weight != p.Weight {
		return wrong("weight %d: all priorities with %s need one weight, and %q in line %d has %d", p.Weight, kinds[0], first.Name, first.Line, first.Weight)
	}
	earlier[kinds[0]] = p
	switch {
	case a.ServiceAntiAffinity != nil:
		t.weights[removed.ServiceAffinity] = p.Weight
		t.service.AntiAffinityLabelsPreference = append(t.service.AntiAffinityLabelsPreference, a.ServiceAntiAffinity.Label)
		return labelKeys([]string{a.ServiceAntiAffinity.Label}, wrong)
	case a.LabelPreference != nil:
		t.weights[removed.NodeLabel] = p.Weight
		to, other := &t.labels.PresentLabelsPreference, t.labels.AbsentLabelsPreference
		if !a.LabelPreference.Presence {
			to, other = &t.labels.AbsentLabelsPreference, t.labels.PresentLabelsPreference
		}
		if slices.Contains(other, a.LabelPreference.Label) {
			return wrong("another priority prefers the opposite for the label %s", a.LabelPreference.Label)
		}
		*to = append(*to, a.LabelPreference.Label)
		return labelKeys([]string{a.LabelPreference.Label}, wrong)
	}
	t.weights[removed.RequestedToCapacityRatio] = p.Weight
	t.ratio = a.RequestedToCapacityRatioArguments
	return checkRatio(t.ratio, wrong)
}

// checkRatio returns in one line what upstream would refuse later.
func checkRatio(r *RequestedToCapacityRatioArguments, wrong func(string, ...any) error) error {
	if len(r.Shape) == 0 {
		return wrong("the shape needs at least one point")
	}
	for i, point := range r.Shape {
		switch {
		case point.Utilization < 0 || point.Utilization > 100:
			return wrong("utilization %d: use 0 to 100", point.Utilization)
		case point.Score < 0 || point.Score > 10:
			return wrong("score %d: use 0 to 10", point.Score)
		case i > 0 && point.Utilization <= r.Shape[i-1].Utilization:
			return wrong("utilization %d follows %d: sort the shape", point.Utilization, r.Shape[i-1].Utilization)
		}
	}
	for _, resource := range r.Resources {
		if resource.Weight < 1 || resource.Weight > 100 {
			return wrong("resource %q has the weight %d: use 1 to 100", resource.Name, resource.Weight)
		}
	}
	return nil
}

// spread adds PodTopologySpread for the two priorities that it stands for: SelectorSpreadPriority is its default
// constraints. With both, the weight is that of EvenPodsSpreadPriority, as it was.
func (t *translation) spread(weights map[string]int64) {
	even, selector := weights[evenSpread], weights[selectorSpread]
	switch {
	case even > 0:
		t.weights[names.PodTopologySpread] = even
	case selector > 0:
		t.weights[names.PodTopologySpread] = selector
	default:
		return
	}
	args := &configv1.PodTopologySpreadArgs{DefaultingType: configv1.ListDefaulting}
	if selector > 0 {
		args.DefaultingType = configv1.SystemDefaulting
	}
	t.config[names.PodTopologySpread] = args
}

// labelsPresence lets NodeAffinity check the labels of nodes where it filters anyway: it would check the selectors of
// pods as well.
func (t *translation) labelsPresence() error {
	present, absent := t.labels.PresentLabels, t.labels.AbsentLabels
	for _, key := range present {
		if slices.Contains(absent, key) {
			return fmt.Errorf("predicates: the label %s must be both present and absent: no node would fit", key)
		}
	}
	if len(present)+len(absent) == 0 {
		return nil
	}
	if !t.filters[names.NodeAffinity] {
		t.filters[removed.NodeLabel] = true
		return nil
	}
	var all []corev1.NodeSelectorRequirement
	for _, key := range present {
		all = append(all, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpExists})
	}
	for _, key := range absent {
		all = append(all, corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpDoesNotExist})
	}
	t.config[names.NodeAffinity] = &configv1.NodeAffinityArgs{AddedAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: all}}},
	}}
	t.labels.PresentLabels, t.labels.AbsentLabels = nil, nil
	return nil
}

// capacity gives one of the three priorities for a node's free capacity to NodeResourcesFit, which has one strategy.
// The others stay with the plugins that do nothing else.
func (t *translation) capacity() {
	fit := true
	for _, plugin := range []string{removed.NodeResourcesLeastAllocated, removed.NodeResourcesMostAllocated, removed.RequestedToCapacityRatio} {
		weight := t.weights[plugin]
		if weight == 0 {
			continue
		}
		args := &configv1.NodeResourcesFitArgs{ScoringStrategy: t.strategy(plugin)}
		if fit {
			delete(t.weights, plugin)
			plugin, fit = names.NodeResourcesFit, false
		}
		t.weights[plugin], t.config[plugin] = weight, args
	}
}

func (t *translation) strategy(plugin string) *configv1.ScoringStrategy {
	s := &configv1.ScoringStrategy{
		Type:      removed.Strategies()[plugin],
		Resources: []configv1.ResourceSpec{{Name: "cpu", Weight: 1}, {Name: "memory", Weight: 1}},
	}
	if plugin != removed.RequestedToCapacityRatio {
		return s
	}
	s.RequestedToCapacityRatio = &configv1.RequestedToCapacityRatioParam{}
	for _, point := range t.ratio.Shape {
		s.RequestedToCapacityRatio.Shape = append(s.RequestedToCapacityRatio.Shape, configv1.UtilizationShapePoint(point))
	}
	if len(t.ratio.Resources) > 0 {
		s.Resources = nil
	}
	for _, resource := range t.ratio.Resources {
		s.Resources = append(s.Resources, configv1.ResourceSpec(resource))
	}
	return s
}

func (t *translation) extenders(given []Extender) ([]configv1.Extender, error) {
	var all []configv1.Extender
	for _, e := range given {
		out := configv1.Extender{
			URLPrefix: e.URLPrefix, FilterVerb: e.FilterVerb, PreemptVerb: e.PreemptVerb, PrioritizeVerb: e.PrioritizeVerb, Weight: e.Weight,
			BindVerb: e.BindVerb, EnableHTTPS: e.EnableHTTPS, HTTPTimeout: metav1.Duration{Duration: time.Duration(e.HTTPTimeout)},
			NodeCacheCapable: e.NodeCacheCapable, Ignorable: e.Ignorable,
		}
		if e.HTTPTimeout < 0 {
			return nil, fmt.Errorf("extender %s: httpTimeout %d: use a number of nanoseconds", e.URLPrefix, e.HTTPTimeout)
		} else if e.HTTPTimeout == 0 {
			out.HTTPTimeout.Duration = 5 * time.Second // the default of 1.22 and of today
		}
		if e.TLSConfig != nil {
			out.TLSConfig = new(configv1.ExtenderTLSConfig(*e.TLSConfig))
		}
		for _, r := range e.ManagedResources {
			out.ManagedResources = append(out.ManagedResources, configv1.ExtenderManagedResource(r))
			if r.IgnoredByScheduler && t.config[names.NodeResourcesFit] == nil { // upstream adds the resource to these arguments
				t.config[names.NodeResourcesFit] = &configv1.NodeResourcesFitArgs{}
			}
		}
		all = append(all, out)
	}
	return all, nil
}

// ours names the plugins of the translation that kube-scheduler does not have.
func (t *translation) ours() string {
	var all []string
	for name := range removed.Registry() {
		if t.filters[name] || t.weights[name] > 0 {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
