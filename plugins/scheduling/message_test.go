package scheduling

import (
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	pluginv1 "kubelith.io/kubelith/plugins/proto/plugin/v1"
	schedulingv1 "kubelith.io/kubelith/plugins/proto/scheduling/v1"
)

// all is every field that a plugin may request.
var all = &pluginv1.NodeFields{Labels: true, Annotations: true, Taints: true, Allocatable: true, Requested: true, Pods: true}

// TestInvalidUTF8: bytes that the API takes from clients that speak protobuf, as upstream checks no annotation, can be
// sent. One annotation of a Node once kept all pods from being filtered, and an annotation of a pod let that pod bypass
// the filter.
func TestInvalidUTF8(t *testing.T) {
	const bad = "a\xff"
	want := "a\uFFFD"
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: bad, Namespace: bad, Labels: map[string]string{bad: bad}, Annotations: map[string]string{bad: bad, corev1.LastAppliedConfigAnnotation: bad}},
		Spec:       corev1.PodSpec{NodeSelector: map[string]string{bad: bad}, SchedulerName: bad, Tolerations: []corev1.Toleration{{Key: bad}}},
	}
	node := framework.NewNodeInfo(pod)
	node.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: bad, Labels: map[string]string{"good": "a", bad: bad}, Annotations: map[string]string{bad: bad}},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: bad, Value: bad, Effect: bad}}},
	})
	node.Allocatable.SetScalar(bad, 1)

	message := nodeMessage(node, all)
	if _, err := proto.Marshal(message); err != nil {
		t.Errorf("a node: %v", err)
	}
	if message.Name != want || message.Annotations[want] != want || message.Labels["good"] != "a" || message.Pods[0].Labels[want] != want {
		t.Errorf("the node is %v", message)
	}
	for _, full := range []bool{false, true} {
		message, err := (&podCache{}).message(pod, full)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := proto.Marshal(&schedulingv1.FilterRequest{Pod: message, PodName: asUTF8(pod.Name)})
		if err != nil {
			t.Errorf("a pod: %v", err)
		}
		if err := proto.Unmarshal(raw, &schedulingv1.FilterRequest{}); err != nil || message.Annotations[want] != want || len(message.Annotations) != 1 {
			t.Errorf("the pod is %v, %v", message, err)
		}
	}
	if pod.Annotations[bad] != bad || node.Node().Labels[bad] != bad {
		t.Error("the objects of the cache were changed")
	}
}

// TestUTF8IsNotCopied: what is right, which nearly everything is, costs a look.
func TestUTF8IsNotCopied(t *testing.T) {
	m := map[string]string{"a": "b", "ä": "€"}
	if n := testing.AllocsPerRun(100, func() { allUTF8(m) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzAnswers: whatever a plugin answers to Filter and Score is an error, or a verdict on the nodes that there are.
func FuzzAnswers(f *testing.F) {
	for _, m := range []proto.Message{
		&schedulingv1.FilterResponse{Rejected: []*schedulingv1.Rejection{{Reason: "full", Nodes: []uint32{0, 1}}}},
		&schedulingv1.FilterResponse{Rejected: []*schedulingv1.Rejection{{Reason: "none", Nodes: []uint32{7}}}},
		&schedulingv1.FilterResponse{Rejected: []*schedulingv1.Rejection{{Nodes: []uint32{0}}}},
		&schedulingv1.ScoreResponse{Scores: []byte{0, 100}},
		&schedulingv1.ScoreResponse{Scores: []byte{101, 1}},
		&schedulingv1.ScoreResponse{Scores: []byte{1}},
	} {
		raw, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		m := &snapshotCache{nodes: []cachedNode{{name: "a"}, {name: "b"}, {}}, ids: map[string]uint32{"a": 0, "b": 1}, free: []uint32{2}}
		var filter schedulingv1.FilterResponse
		if proto.Unmarshal(raw, &filter) == nil {
			if v, err := m.filterResults(&filter, &pluginv1.SchedulingDescription{FilterUsesPods: true}); err == nil {
				for name, id := range m.ids {
					if reason := v.reasons[v.rejected[id]]; (reason == "") != (v.rejected[id] == 0) {
						t.Errorf("%s is refused by %d because of %q", name, v.rejected[id], reason)
					}
				}
			}
		}
		var score schedulingv1.ScoreResponse
		if proto.Unmarshal(raw, &score) == nil {
			if s, err := m.scores(&score, []uint32{1, 0}); err == nil {
				for _, value := range s.values[:2] {
					if value > 100 {
						t.Errorf("a score of %d", value)
					}
				}
			}
		}
	})
}
