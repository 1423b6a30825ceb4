package policy

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
)

const head = "kind: Policy\napiVersion: v1\n"

// everything uses each field once.
const everything = `{
	"kind": "Policy",
	"apiVersion": "v1",
	"predicates": [
		{"name": "GeneralPredicates"},
		{"name": "Zones", "argument": {"serviceAffinity": {"labels": ["zone"]}}},
		{"name": "Disks", "argument": {"labelsPresence": {"labels": ["disk"], "presence": true}}},
		{"name": "Retiring", "argument": {"labelsPresence": {"labels": ["retiring"], "presence": false}}}
	],
	"priorities": [
		{"name": "EqualPriority", "weight": 1},
		{"name": "LeastRequestedPriority", "weight": 3},
		{"name": "MostRequestedPriority", "weight": 4},
		{"name": "Spread", "weight": 5, "argument": {"serviceAntiAffinity": {"label": "rack"}}},
		{"name": "Fast", "weight": 6, "argument": {"labelPreference": {"label": "ssd", "presence": true}}},
		{"name": "Ratio", "weight": 7, "argument": {"requestedToCapacityRatioArguments": {
			"shape": [{"utilization": 0, "score": 0}, {"utilization": 100, "score": 10}],
			"resources": [{"name": "example.com/gpu", "weight": 2}]}}}
	],
	"extenders": [{
		"urlPrefix": "https://192.0.2.1/x", "filterVerb": "f", "preemptVerb": "e", "prioritizeVerb": "p", "weight": 8, "BindVerb": "b",
		"enableHttps": true, "tlsConfig": {"Insecure": true, "serverName": "s"}, "httpTimeout": 1500000000, "nodeCacheCapable": true,
		"managedResources": [{"name": "example.com/gpu", "ignoredByScheduler": true}], "ignorable": true
	}],
	"hardPodAffinitySymmetricWeight": 9,
	"alwaysCheckAllPredicates": true
}`

func TestParse(t *testing.T) {
	p, err := Parse([]byte(everything))
	if err != nil {
		t.Fatal(err)
	}
	if e := p.Extenders[0]; e.BindVerb != "b" || !e.EnableHTTPS || !e.TLSConfig.Insecure || !e.ManagedResources[0].IgnoredByScheduler {
		t.Errorf("extender: %+v", e)
	}
	if got := p.Priorities[5]; got.Line != 16 || !reflect.DeepEqual(got.Argument.RequestedToCapacityRatioArguments.Shape, []UtilizationShapePoint{{0, 0}, {100, 10}}) {
		t.Errorf("priority: %+v", got)
	}
	for text, want := range map[string]Policy{
		head:                                     {},
		head + "predicates:\npriorities: null\n": {},
		head + "predicates: []\npriorities: []\n":           {Predicates: []Predicate{}, Priorities: []Priority{}},
		head + "predicates:\n- name: X\n  argument: null\n": {Predicates: []Predicate{{Line: 4, Name: "X"}}},
		head + "alwaysCheckAllPredicates: yes\n":            {AlwaysCheckAllPredicates: true},
		head + "extenders: [{tlsConfig: {CAData: YQ==}}]\n": {Extenders: []Extender{{TLSConfig: &TLSConfig{CAData: []byte("a")}}}},
	} {
		want.Kind, want.APIVersion = "Policy", "v1"
		if p, err := Parse([]byte(text)); err != nil || !reflect.DeepEqual(*p, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, p, err, want)
		}
	}
}

// TestRefused: an error is one line, with the number of the line in the file.
func TestRefused(t *testing.T) {
	predicate := func(text string) string { return head + "predicates:\n- name: HostName\n- " + text + "\n" }
	priority := func(text string) string {
		return head + "priorities:\n- {name: ImageLocalityPriority, weight: 1}\n- " + text + "\n"
	}
	for text, want := range map[string]string{
		"":                         "line 1: it is empty",
		"# nothing\n":              "line 1: it is empty",
		"null":                     "line 1: a policy must be a mapping",
		"- a\n":                    "line 1: a policy must be a mapping",
		"kind: Policy\n":           "line 1: apiVersion is missing",
		"\napiVersion: v1\n":       "line 2: kind is missing",
		"apiVersion: v2\n":         `line 1: apiVersion "v2" is not known`,
		"a: [\n":                   "line 1: did not find",
		"{\"kind\": \"Policy\",\n": "line 2: unexpected end of JSON input",
		"{\"kind\": \"Policy\"\n\n\"apiVersion\": \"v1\"}":                               "line 3: invalid character",
		"apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n": `line 2: kind "KubeSchedulerConfiguration" is not known: a policy has kind: Policy; --scheduler-arg=config=FILE`,
		head + "---\n" + head:                                 "line 3: a second document",
		head + "predicate: []\n":                              `line 3: policy has no field "predicate": did you mean "predicates"?`,
		head + "Predicates: []\n":                             `line 3: policy has no field "Predicates": did you mean "predicates"?`,
		head + "predicates: []\npredicates: []\n":             `line 4: policy has the field "predicates" twice, first in line 3`,
		head + "predicates: {}\n":                             "line 3: predicates must be a list",
		head + "predicates: [x]\n":                            "line 3: predicates[0] must be a mapping",
		head + "hardPodAffinitySymmetricWeight: '1'\n":        "line 3: hardPodAffinitySymmetricWeight must be a whole number of at most 32 bits",
		head + "hardPodAffinitySymmetricWeight: 1.5\n":        "must be a whole number",
		head + "hardPodAffinitySymmetricWeight: 1e99\n":       "must be a whole number",
		head + "hardPodAffinitySymmetricWeight: 4294967297\n": "must be a whole number",
		head + "hardPodAffinitySymmetricWeight: 101\n":        "hardPodAffinitySymmetricWeight 101: use 1 to 100",
		head + "alwaysCheckAllPredicates: 1\n":                "line 3: alwaysCheckAllPredicates must be true or false",
		head + "predicates: &a []\npriorities: *a\n":          "line 4: priorities: an alias",
		head + "<<: {predicates: []}\n":                       `line 3: policy has no field "<<"`,
		head + "? [a]\n: b\n":                                 `line 3: policy has no field ""`,

		predicate("name: 7"):                                  "line 5: predicates[1].name must be a string",
		predicate("nam: X"):                                   `line 5: predicates[1] has no field "nam": did you mean "name"?`,
		predicate("{name: HostName, name: X}"):                `line 5: predicates[1] has the field "name" twice`,
		predicate("name: HostNam"):                            `line 5: predicate "HostNam": Kubernetes 1.22 had no such name: did you mean "HostName"?`,
		predicate("name: Elsewhere"):                          `line 5: predicate "Elsewhere": Kubernetes has no counterpart`,
		predicate("name: CheckNodeCondition"):                 `line 5: predicate "CheckNodeCondition": Kubernetes has no counterpart: remove it`,
		predicate("name: X\n  argument: {}"):                  `line 5: predicate "X": the argument must be either`,
		predicate("name: X\n  argument: {labelPresence: {}}"): `line 6: predicates[1].argument has no field "labelPresence"`,
		predicate("name: X\n  argument: {serviceAffinity: {labels: [a]}, labelsPresence: {labels: [a]}}"):                                                      "must be either",
		predicate("name: HostName\n  argument: {serviceAffinity: {labels: [a]}}"):                                                                              "takes no argument",
		predicate("name: X\n  argument: {serviceAffinity: {labels: ['a b']}}"):                                                                                 `line 5: predicate "X": "a b" is not the key of a label`,
		head + "predicates:\n- name: A\n  argument: {labelsPresence: {labels: [a], presence: true}}\n- name: B\n  argument: {labelsPresence: {labels: [a]}}\n": "the label a must be both present and absent",

		priority("name: LeastRequestedPriority"):                                                      `line 5: priority "LeastRequestedPriority": weight 0: use 1 to 2147483647`,
		priority("{name: LeastRequestedPriority, weight: -1}"):                                        "weight -1",
		priority("{name: LeastRequestedPriority, weight: 1e3}"):                                       "priorities[1].weight must be a whole number",
		priority("{name: X, weight: 2147483648}"):                                                     "weight 2147483648",
		priority("{name: LeastRequestPriority, weight: 1}"):                                           `did you mean "LeastRequestedPriority"?`,
		priority("{name: ResourceLimitsPriority, weight: 1}"):                                         `line 5: priority "ResourceLimitsPriority": Kubernetes has no counterpart: remove it`,
		priority("{name: RequestedToCapacityRatioPriority, weight: 1}"):                               "requestedToCapacityRatioArguments is missing",
		priority("{name: X, weight: 1, argument: {}}"):                                                "must be one of",
		priority("{name: ImageLocalityPriority, weight: 1, argument: {labelPreference: {label: a}}}"): "takes no argument",
		priority("{name: X, weight: 1, argument: {labelPreference: {label: a}}}\n- {name: Y, weight: 2, argument: {labelPreference: {label: b}}}"):                                           `line 6: priority "Y": weight 2: all priorities with labelPreference need one weight, and "X" in line 5 has 1`,
		priority("{name: X, weight: 1, argument: {labelPreference: {label: a}}}\n- {name: Y, weight: 1, argument: {labelPreference: {label: a, presence: true}}}"):                           "prefers the opposite",
		priority("{name: X, weight: 1, argument: {labelPreference: {label: ''}}}"):                                                                                                           "is not the key of a label",
		priority("{name: X, weight: 2000000000, argument: {labelPreference: {label: a}}}\n- {name: Y, weight: 2000000000, argument: {labelPreference: {label: b}}}"):                         "the sum of the weights of all labels is 4000000000",
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {}}}"):                                                                                                  "the shape needs at least one point",
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 101}]}}}"):                                                                       "utilization 101: use 0 to 100",
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{score: 11}]}}}"):                                                                              "score 11: use 0 to 10",
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{utilization: 9}, {utilization: 9}]}}}"):                                                       "sort the shape",
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{}], resources: [{name: cpu}]}}}"):                                                             `resource "cpu" has the weight 0`,
		priority("{name: X, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{}]}}}\n- {name: Y, weight: 1, argument: {requestedToCapacityRatioArguments: {shape: [{}]}}}"): `line 6: priority "Y": a policy has one priority with requestedToCapacityRatioArguments, and "X" in line 5 is one`,

		head + "extenders:\n- urlPrefix: http://192.0.2.1\n  verb: x\n":                  `line 5: extenders[0] has no field "verb"`,
		head + "extenders:\n- {urlPrefix: http://192.0.2.1, URLPREFIX: x}\n":             `extenders[0] has the field "URLPREFIX" twice`,
		head + "extenders:\n- {urlPrefix: http://192.0.2.1, httpTimeout: 5s}\n":          "line 4: extenders[0].httpTimeout must be a whole number",
		head + "extenders:\n- {urlPrefix: http://192.0.2.1, httpTimeout: -1}\n":          "httpTimeout -1: use a number of nanoseconds",
		head + "extenders:\n- {urlPrefix: http://192.0.2.1, tlsConfig: {caData: '?'}}\n": "extenders[0].tlsConfig.caData must be base64",
		head + "extenders:\n- {urlPrefix: http://192.0.2.1, prioritizeVerb: p}\n":        "extenders[0].weight",
		head + "extenders:\n- {bindVerb: b}\n- {bindVerb: b}\n":                          "only one extender can implement bind",
		head + "extenders:\n- {managedResources: [{name: cpu}]}\n":                       "extenders[0].managedResources[0].name",
	} {
		_, err := Load([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v\nwant %s", text, err, want)
		}
	}
}

// reads checks that upstream reads what is printed.
func reads(t *testing.T, text []byte, translation *Translation) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	if err := os.WriteFile(file, translation.YAML, 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil || !reflect.DeepEqual(cfg, translation.Config) {
		t.Errorf("%s\nis printed as\n%s\nand read as %+v: %v", text, translation.YAML, cfg, err)
	}
}

// FuzzLoad: a text that is not refused in one line becomes a configuration that upstream reads.
func FuzzLoad(f *testing.F) {
	for _, text := range []string{
		everything, head, head + "predicates: []\npriorities: []\n", "", "{", "a: &a [*a]", "\t{}", "kind: !!binary Policy", head + "--- x",
		head + "predicates: [{name: X, argument: {labelsPresence: {labels: [a/b], presence: true}}}]\n",
		head + "priorities: [{name: X, weight: 1, argument: {serviceAntiAffinity: {label: a}}}]\n",
		head + "extenders: [{urlPrefix: x, managedResources: [{name: a.b/c, ignoredByScheduler: true}]}]\npredicates: []\n",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		translation, err := Load(text)
		if err == nil {
			reads(t, text, translation)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %q", text, err)
		}
	})
}
