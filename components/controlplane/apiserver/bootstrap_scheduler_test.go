package apiserver

import (
	"reflect"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestSchedulerPolicy: the scheduler may read the ConfigMap of its policy, and nothing is created without one.
func TestSchedulerPolicy(t *testing.T) {
	roles := func(m types.NamespacedName) (rules []rbacv1.PolicyRule, namespaces []string) {
		for _, w := range wantedObjects(&Options{SchedulerPolicy: m}, false) {
			if r, ok := w.object.(*rbacv1.Role); ok && r.Name == "kubelith:scheduler-policy" {
				rules, namespaces = append(rules, r.Rules...), append(namespaces, r.Namespace)
			}
		}
		return rules, namespaces
	}
	if rules, _ := roles(types.NamespacedName{}); rules != nil {
		t.Errorf("without a policy: %v", rules)
	}
	rules, namespaces := roles(types.NamespacedName{Namespace: "n", Name: "m"})
	want := []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"m"}, Verbs: []string{"get"}}}
	if !reflect.DeepEqual(rules, want) || !reflect.DeepEqual(namespaces, []string{"n"}) {
		t.Errorf("%v in %v, want %v in n", rules, namespaces, want)
	}
}
