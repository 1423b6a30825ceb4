package status

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubelith.io/kubelith/base/names"
)

// TestReportedConditions: a Node has those that were reported, and loses the others; a report that changes nothing is
// none.
func TestReportedConditions(t *testing.T) {
	o := NewObserver()
	types := func() (wanted []corev1.NodeConditionType, unwanted []corev1.NodeConditionType) {
		all, unwanted := o.conditions(metav1.Now())
		for _, c := range all {
			wanted = append(wanted, c.Type)
		}
		return wanted, unwanted
	}
	wanted, unwanted := types()
	if !slices.Equal(wanted, []corev1.NodeConditionType{Condition}) || !slices.Equal(unwanted, []corev1.NodeConditionType{names.EtcdSpaceCondition, names.PolicyCondition}) {
		t.Errorf("at first: %v, not %v", wanted, unwanted)
	}
	o.EtcdSpace(corev1.ConditionTrue, "EtcdNearlyFull", "why")
	o.Policies(corev1.ConditionTrue, "Enforced", "")
	wanted, unwanted = types()
	if !slices.Equal(wanted, []corev1.NodeConditionType{Condition, names.EtcdSpaceCondition, names.PolicyCondition}) || len(unwanted) != 0 {
		t.Errorf("reported: %v, not %v", wanted, unwanted)
	}
	select {
	case <-o.changed:
	default:
		t.Error("the Node is not written")
	}
	o.EtcdSpace(corev1.ConditionTrue, "EtcdNearlyFull", "why")
	select {
	case <-o.changed:
		t.Error("the Node is written without a change")
	default:
	}
}
