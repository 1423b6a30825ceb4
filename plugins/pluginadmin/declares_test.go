package pluginadmin

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
)

func TestDeclares(t *testing.T) {
	for name, tc := range map[string]struct {
		description *pluginv1.Description
		want        []string
	}{
		"admission": {&pluginv1.Description{Kind: &pluginv1.Description_Admission{Admission: &pluginv1.AdmissionDescription{
			Mutating: [][]byte{[]byte(`{"name":"inject","failurePolicy":"Ignore","timeoutSeconds":2,
				"rules":[{"operations":["CREATE","UPDATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods"]},
				         {"operations":["*"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]}]}`)},
			Validating: [][]byte{[]byte(`{"name":"check"}`)},
		}}}, []string{
			"mutating hook inject: CREATE, UPDATE of pods; * of deployments.apps; failure policy Ignore; timeout 2s",
			"validating hook check:",
		}},
		"scheduling": {&pluginv1.Description{Kind: &pluginv1.Description_Scheduling{Scheduling: &pluginv1.SchedulingDescription{
			Filter: true, Score: true, Weight: 5, FullPod: true, FilterUsesPods: true, Unresolvable: true, Timeout: durationpb.New(50 * time.Millisecond),
		}}}, []string{
			"filters nodes, also by their pods: preemption calls it again, preemption cannot help",
			"scores nodes with weight 5", "needs whole pods: pods of its profiles are not scheduled in batches", "failure policy Ignore", "timeout 50ms",
		}},
		"storage": {&pluginv1.Description{Kind: &pluginv1.Description_Storage{Storage: &pluginv1.StorageDescription{
			CsiDriver: []byte(`{"metadata":{"name":"d.example.com"}}`), StorageClasses: [][]byte{[]byte(`{"metadata":{"name":"fast"}}`)}, NodeLocal: true,
		}}}, []string{"CSI driver d.example.com", "StorageClass fast", "each node provisions its own volumes"}},
		"nothing": {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var p Plugin
			if tc.description != nil {
				p.Description, _ = protojson.Marshal(tc.description)
			}
			got, err := p.Declares()
			if err != nil || !slices.Equal(got, tc.want) {
				t.Errorf("%v\ngot  %q\nwant %q", err, got, tc.want)
			}
		})
	}
	if _, err := (Plugin{Name: "x", Description: []byte("[")}).Declares(); err == nil {
		t.Error("garbage is a description")
	}
	if lines, err := (Plugin{Description: []byte(`{"fromTheFuture":1,"scheduling":{}}`)}).Declares(); err != nil || len(lines) != 1 {
		t.Errorf("%q, %v", lines, err)
	}
}
