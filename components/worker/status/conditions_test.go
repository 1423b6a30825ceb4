package status

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/base/names"
)

// TestReportedConditions: a Node has those that were reported, and loses the others; a report that changes nothing is
// none.
func TestReportedConditions(t *testing.T) {
	o := NewObserver()
	types := func() (wanted []corev1.NodeConditionType) {
		for _, c := range o.conditions() {
			wanted = append(wanted, c.Type)
		}
		return wanted
	}
	wanted := types()
	if !slices.Equal(wanted, []corev1.NodeConditionType{Condition}) {
		t.Errorf("at first: %v", wanted)
	}
	o.EtcdSpace(corev1.ConditionTrue, "EtcdNearlyFull", "why")
	o.Policies(corev1.ConditionTrue, "Enforced", "")
	all := []corev1.NodeConditionType{Condition, names.EtcdSpaceCondition, names.PolicyCondition}
	if wanted = types(); !slices.Equal(wanted, all) {
		t.Errorf("reported: %v", wanted)
	}
	for _, c := range []struct {
		t      corev1.NodeConditionType
		remove bool // while it is not wanted
	}{{names.EtcdSpaceCondition, true}, {names.PolicyCondition, true}, {Condition, false}, {corev1.NodeReady, false}} {
		if reported(c.t) != c.remove {
			t.Errorf("%s: removed from the Node: %v", c.t, !c.remove)
		}
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
