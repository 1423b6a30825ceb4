package policywarning

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/warning"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"kubelith.io/kubelith/base/names"
)

func node(name string, status corev1.ConditionStatus, message string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Message: "other"}, {Type: names.PolicyCondition, Status: status, Message: message},
	}}}
}

func TestText(t *testing.T) {
	yes := node("a", corev1.ConditionTrue, "network policies are enforced")
	no := func(name string) *corev1.Node { return node(name, corev1.ConditionFalse, "why") }
	for want, nodes := range map[string][]*corev1.Node{
		"": {yes, {}},
		"network policies are not enforced for pods on b (why), c (why)":                                                                      {yes, no("c"), no("b")},
		"network policies are not enforced for pods on b (why), c (why), d (why) and 2 more (condition KubelithNetworkPolicies of the Nodes)": {no("f"), no("c"), no("b"), no("d"), no("e")},
	} {
		if got := Text(nodes); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

type recorder struct{ texts []string }

func (r *recorder) AddWarning(_, text string) { r.texts = append(r.texts, text) }

// TestValidate: policies of both kinds are warned about, and nothing else.
func TestValidate(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	if err := indexer.Add(node("b", corev1.ConditionFalse, "why")); err != nil {
		t.Fatal(err)
	}
	p := New()
	if p.ValidateInitialization() == nil {
		t.Error("a plugin without informers is accepted")
	}
	p.nodes = corelisters.NewNodeLister(indexer)
	for _, tc := range []struct {
		group, resource, subresource string
		want                         []string
	}{
		{"networking.k8s.io", "networkpolicies", "", []string{"network policies are not enforced for pods on b (why)"}},
		{"policy.networking.k8s.io", "clusternetworkpolicies", "", []string{"network policies are not enforced for pods on b (why)"}},
		{"policy.networking.k8s.io", "clusternetworkpolicies", "status", nil},
		{"networking.k8s.io", "ingresses", "", nil},
	} {
		warnings := &recorder{}
		a := admission.NewAttributesRecord(nil, nil, schema.GroupVersionKind{}, "", "p", schema.GroupVersionResource{Group: tc.group, Resource: tc.resource}, tc.subresource,
			admission.Create, nil, false, nil)
		if err := p.Validate(warning.WithWarningRecorder(t.Context(), warnings), a, nil); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(warnings.texts, tc.want) {
			t.Errorf("%s/%s %s: warnings %q, want %q", tc.group, tc.resource, tc.subresource, warnings.texts, tc.want)
		}
	}
}
