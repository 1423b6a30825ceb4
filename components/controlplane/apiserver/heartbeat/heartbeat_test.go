package heartbeat

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/coordination"
)

func TestRenewalsGoForward(t *testing.T) {
	noon := time.Date(2030, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(offset time.Duration) *metav1.MicroTime { return &metav1.MicroTime{Time: noon.Add(offset)} }
	for name, tc := range map[string]struct {
		namespace        string
		old, lease, want *metav1.MicroTime
	}{
		"later":                  {"kube-node-lease", at(0), at(10 * time.Second), at(10 * time.Second)},
		"the clock was set back": {"kube-node-lease", at(0), at(-time.Hour), at(time.Microsecond)},
		"the same":               {"kube-node-lease", at(0), at(0), at(0)},
		"the first":              {"kube-node-lease", nil, at(0), at(0)},
		"none":                   {"kube-node-lease", at(0), nil, nil},
		"an election":            {"kube-system", at(0), at(-time.Hour), at(-time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			lease := func(renewed *metav1.MicroTime) *coordination.Lease {
				return &coordination.Lease{Spec: coordination.LeaseSpec{RenewTime: renewed}}
			}
			object := lease(tc.lease)
			a := admission.NewAttributesRecord(object, lease(tc.old), coordinationv1.SchemeGroupVersion.WithKind("Lease"), tc.namespace, "n1",
				coordinationv1.SchemeGroupVersion.WithResource("leases"), "", admission.Update, &metav1.UpdateOptions{}, false, nil)
			if err := New().Admit(t.Context(), a, nil); err != nil {
				t.Fatal(err)
			}
			if got := object.Spec.RenewTime; !got.Equal(tc.want) {
				t.Errorf("renewed at %v, want %v", got, tc.want)
			}
		})
	}
}
