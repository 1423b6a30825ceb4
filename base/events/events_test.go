package events

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestWrite: an Event is in the namespace of its object, or in default, no longer than the API accepts, and an error is
// returned.
func TestWrite(t *testing.T) {
	cs := fake.NewSimpleClientset()
	source := corev1.EventSource{Component: "c", Host: "h"}
	about := &corev1.ObjectReference{APIVersion: "v1", Kind: "ConfigMap", Namespace: "ns", Name: "m", UID: "u"}
	for _, o := range []*corev1.ObjectReference{about, Node("n1")} {
		if err := Write(t.Context(), cs, o, source, corev1.EventTypeWarning, "Why", "xx"+strings.Repeat("é", maxMessage)); err != nil {
			t.Fatal(err)
		}
		namespace := metav1.NamespaceDefault
		if o.Namespace != "" {
			namespace = o.Namespace
		}
		list, err := cs.CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("%d Events in %s, error %v", len(list.Items), namespace, err)
		}
		e := list.Items[0]
		if e.InvolvedObject != *o || e.Source != source || e.Type != corev1.EventTypeWarning || e.Reason != "Why" || e.Count != 1 || e.LastTimestamp.IsZero() {
			t.Errorf("%+v", e)
		}
		if len(e.Message) != maxMessage-1 || !strings.HasSuffix(e.Message, "é...") { // it would end with half a character
			t.Errorf("a message of %d bytes", len(e.Message))
		}
	}
	full := errors.New("no space")
	cs.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, full })
	if err := Write(t.Context(), cs, about, source, corev1.EventTypeNormal, "Why", "m"); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
}
