package policy

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
)

// enabled are the plugins of the profile, and those that score, with their weights.
func enabled(t *testing.T, policy string) (filters []string, scores map[string]int32) {
	t.Helper()
	translation, err := Load([]byte(head + policy))
	if err != nil {
		t.Fatal(err)
	}
	plugins := translation.Config.Profiles[0].Plugins
	for _, p := range plugins.MultiPoint.Enabled {
		filters = append(filters, p.Name)
	}
	scores = map[string]int32{}
	for _, p := range plugins.Score.Enabled {
		scores[p.Name] = p.Weight
	}
	return filters, scores
}

// TestLists: an absent list means the default, and an empty one means none.
func TestLists(t *testing.T) {
	always := []string{"SchedulingGates", "PrioritySort", "NodeUnschedulable", "TaintToleration", "DynamicResources", "DefaultPreemption", "DefaultBinder"}
	byDefault := []string{"NodeResourcesFit", "NodeName", "NodePorts", "NodeAffinity", "VolumeRestrictions", "NodeVolumeLimits",
		"VolumeBinding", "VolumeZone", "PodTopologySpread", "InterPodAffinity"}
	weights := map[string]int32{"PodTopologySpread": 2, "InterPodAffinity": 1, "NodeResourcesFit": 1, "NodeResourcesBalancedAllocation": 1,
		"NodePreferAvoidPods": 10000, "NodeAffinity": 1, "TaintToleration": 1, "ImageLocality": 1}

	filters, scores := enabled(t, "")
	for _, name := range append(slices.Clone(always), byDefault...) {
		if !slices.Contains(filters, name) {
			t.Errorf("by default, %s is missing in %v", name, filters)
		}
	}
	if !reflect.DeepEqual(scores, weights) {
		t.Errorf("by default: %v, want %v", scores, weights)
	}
	filters, scores = enabled(t, "predicates: []\npriorities: []\n")
	for _, name := range always {
		if !slices.Contains(filters, name) {
			t.Errorf("with empty lists, %s is missing in %v", name, filters)
		}
	}
	for _, name := range byDefault {
		if slices.Contains(filters, name) {
			t.Errorf("with empty lists, %s is in %v", name, filters)
		}
	}
	if len(scores) > 0 {
		t.Errorf("with an empty list: %v", scores)
	}
	if _, scores = enabled(t, "priorities: [{name: ImageLocalityPriority, weight: 1}, {name: ImageLocalityPriority, weight: 3}]\n"); scores["ImageLocality"] != 3 {
		t.Errorf("of two weights: %v", scores)
	}
	// In 1.22 these did nothing without an argument.
	if filters, _ = enabled(t, "predicates: [{name: CheckServiceAffinity}, {name: CheckNodeLabelPresence}]\n"); slices.Contains(filters, "ServiceAffinity") || slices.Contains(filters, "NodeLabel") {
		t.Errorf("without arguments: %v", filters)
	}
}

// TestNotes: what a policy requests and does not get is reported.
func TestNotes(t *testing.T) {
	for text, want := range map[string]string{
		"alwaysCheckAllPredicates: true\n":                                                          "alwaysCheckAllPredicates has no effect",
		"predicates: [{name: MaxEBSVolumeCount}, {name: HostName}]\n":                               "MaxEBSVolumeCount: the limits of all CSI drivers count",
		"predicates: [{name: MaxCinderVolumeCount}, {name: MaxGCEPDVolumeCount}]\n":                 "MaxCinderVolumeCount, MaxGCEPDVolumeCount: ",
		"predicates: [{name: MaxEBSVolumeCount}, {name: MaxCSIVolumeCountPred}]\n":                  "",
		"alwaysCheckAllPredicates: false\npriorities: [{name: ImageLocalityPriority, weight: 1}]\n": "",
	} {
		translation, err := Load([]byte(head + text))
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if got := strings.Join(translation.Notes, "; "); (want == "") != (got == "") || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestEverything(t *testing.T) {
	translation, err := Load([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	reads(t, []byte(everything), translation)
	if len(translation.Notes) != 1 || !strings.HasPrefix(translation.Notes[0], "alwaysCheckAllPredicates") {
		t.Errorf("notes: %q", translation.Notes)
	}
	for _, want := range []string{
		"# kube-scheduler no longer has these plugins, Kubelith does: NodeLabel, NodeResourcesMostAllocated, RequestedToCapacityRatio, ServiceAffinity.\n",
		"# alwaysCheckAllPredicates has no effect",
		"hardPodAffinityWeight: 9",
	} {
		if !strings.Contains(string(translation.YAML), want) {
			t.Errorf("it lacks %q:\n%s", want, translation.YAML)
		}
	}
	if want := []config.Extender{{
		URLPrefix: "https://192.0.2.1/x", FilterVerb: "f", PreemptVerb: "e", PrioritizeVerb: "p", Weight: 8, BindVerb: "b", EnableHTTPS: true,
		TLSConfig: &config.ExtenderTLSConfig{Insecure: true, ServerName: "s"}, HTTPTimeout: metav1.Duration{Duration: 1500 * time.Millisecond},
		NodeCacheCapable: true, ManagedResources: []config.ExtenderManagedResource{{Name: "example.com/gpu", IgnoredByScheduler: true}}, Ignorable: true,
	}}; !reflect.DeepEqual(translation.Config.Extenders, want) {
		t.Errorf("extenders: %+v, want %+v", translation.Config.Extenders, want)
	}
	newRig(t, everything) // the framework accepts it
}

// TestIgnoredResource: the scheduler ignores what an extender manages, also if the policy does not count resources.
func TestIgnoredResource(t *testing.T) {
	const extenders = "\nextenders: [{urlPrefix: 'http://192.0.2.1', managedResources: [{name: example.com/gpu, ignoredByScheduler: true}]}]\n"
	gpu := func(text string) string {
		fit, _ := newRig(t, text, with()...).fitting(pod(requests("1", "1Gi"), needsGPU))
		return fit
	}
	if got := gpu("predicates: [{name: PodFitsResources}]" + extenders); got != "bad good" {
		t.Errorf("with the extender these nodes fit: %q", got)
	}
	if got := gpu("predicates: [{name: PodFitsResources}]"); got != "" {
		t.Errorf("without it these nodes fit: %q", got)
	}
	if got := gpu("predicates: []\npriorities: []" + extenders); got != "bad good" {
		t.Errorf("without the predicate these nodes fit: %q", got)
	}
}
