package apiserver

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubelith.io/kubelith/base/client"
)

// TestPluginsInMemory: what runs plugins may write a condition of the Node and an Event, and change nothing else.
func TestPluginsInMemory(t *testing.T) {
	ctx, cs := t.Context(), clientFor(t, serve(t).Config(client.Plugins))
	const name = "plugins-in-memory"
	if _, err := admin(t).CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := func(text string, subresources ...string) error {
		_, err := cs.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{}, subresources...)
		return err
	}
	eventually(t, "write a condition", func() error {
		return patch(`{"status":{"conditions":[{"type":"Plugin/x","status":"True"}]}}`, "status")
	})
	node, err := cs.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil || len(node.Status.Conditions) != 1 || node.Status.Conditions[0].Type != "Plugin/x" {
		t.Errorf("conditions %+v, error %v", node, err)
	}
	event := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: name + ".1"},
		InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: name, UID: types.UID(name)},
	}
	if _, err := cs.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, event, metav1.CreateOptions{}); err != nil {
		t.Errorf("create an Event: %v", err)
	}
	for what, err := range map[string]error{
		"changes the spec": patch(`{"spec":{"unschedulable":true}}`),
		"deletes a Node":   cs.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		"lists Pods":       func() error { _, err := cs.CoreV1().Pods("").List(ctx, metav1.ListOptions{}); return err }(),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("what runs plugins %s: %v", what, err)
		}
	}
}
