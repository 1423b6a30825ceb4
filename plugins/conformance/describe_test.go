package conformance

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

// FuzzDescribe: each kind accepts whatever a plugin declares, or refuses it with one line.
func FuzzDescribe(f *testing.F) {
	hook := `{"name":"a","rules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]}],"sideEffects":"None"}`
	for _, d := range []*pluginv1.Description{
		{},
		{Version: "1\x1b[31m", Kind: &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{Validating: [][]byte{[]byte(hook)}}}},
		{Kind: &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{Mutating: [][]byte{[]byte(`{"name":7}`), nil}}}},
		{Kind: &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{Validating: [][]byte{[]byte(strings.Replace(hook, "}]", `}],"matchConditions":[{"name":"a","expression":"request."}]`, 1))}}}},
		{Kind: &pluginv1.Description_Scheduling{Scheduling: &pluginv1.SchedulingDescription{Filter: true, Score: true, Weight: -1}}},
		{Kind: &pluginv1.Description_Storage{Storage: &pluginv1.StorageDescription{}}},
	} {
		raw, err := proto.Marshal(d)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		var d pluginv1.Description
		if proto.Unmarshal(raw, &d) != nil {
			return
		}
		for kind, validate := range validators() {
			if err := validate("a", &d); err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %q is more than a line", kind, err)
			}
		}
	})
}
