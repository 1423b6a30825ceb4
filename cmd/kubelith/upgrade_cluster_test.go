package kubelith

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubelith.io/kubelith/components/worker/upgrader"
)

// TestUnfit: a node is upgraded from elsewhere only if it says that it can, is Ready and has the same processor.
func TestUnfit(t *testing.T) {
	for _, c := range []struct {
		status string // of the annotation
		ready  corev1.ConditionStatus
		want   string
	}{
		{`{}`, corev1.ConditionTrue, ""},
		{`{"id":"1","error":"it went back"}`, corev1.ConditionTrue, ""},
		{``, corev1.ConditionTrue, "its release cannot upgrade itself"},
		{`{"cannot":"there is no service"}`, corev1.ConditionTrue, "there is no service"},
		{`{}`, corev1.ConditionUnknown, "it is not Ready"},
	} {
		n := &corev1.Node{}
		n.Annotations = map[string]string{upgrader.StatusAnnotation: c.status}
		n.Status.NodeInfo.Architecture = "amd64"
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: c.ready}}
		if got := unfit(n, "amd64"); (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s, %s: %q, want %q", c.status, c.ready, got, c.want)
		}
		if got := unfit(n, "arm64"); got == "" {
			t.Errorf("%s, %s: it is fit for a program of another processor", c.status, c.ready)
		}
	}
}
