package kubelith

import (
	"io"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubectl/pkg/drain"

	"kubelith.io/kubelith/components/controlplane/servers"
	"kubelith.io/kubelith/components/worker/upgrader"
	"kubelith.io/kubelith/host/upgrade"
)

// TestUnfit: a node is upgraded from elsewhere only if it reports that it can, is Ready and has the same processor.
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

// TestWithoutNode: a server that has no Node is named, as it would be left out; a witness is not.
func TestWithoutNode(t *testing.T) {
	server := func(name, role string, witness bool) servers.Status {
		return servers.Status{Name: name, Role: role, Witness: witness}
	}
	for what, c := range map[string]struct {
		all  []servers.Status
		want string // empty: none
	}{
		"an older release":         {nil, ""},
		"all have nodes":           {[]servers.Status{server("a", servers.RoleLeader, false), server("b", servers.RoleFollower, false)}, ""},
		"a witness":                {[]servers.Status{server("a", servers.RoleLeader, false), server("w", servers.RoleFollower, true)}, ""},
		"one without a kubelet":    {[]servers.Status{server("a", servers.RoleLeader, false), server("c", servers.RoleFollower, false)}, "the server c has no node"},
		"one that begins to join":  {[]servers.Status{server("a", servers.RoleLeader, false), server("", servers.RoleJoining, false)}, "the server - is joining"},
		"one that joins, and runs": {[]servers.Status{server("b", servers.RoleJoining, false)}, ""}, // its own check refuses
	} {
		got := withoutNode(c.all, []string{"b", "a"})
		if (len(got) == 0) != (c.want == "") || len(got) > 0 && (len(got) != 1 || !strings.HasPrefix(got[0], c.want) || strings.Contains(got[0], "\n")) {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestDrain: the pods of a node go, except those of DaemonSets; a pod that no controller would start again is a reason
// to stop. Afterwards pods may come back, unless an administrator had cordoned the node.
func TestDrain(t *testing.T) {
	owned := func(name, kind string) *corev1.Pod {
		yes := true
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.PodSpec{NodeName: "a"}}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: name, Controller: &yes}}
		}
		return p
	}
	for _, c := range []struct {
		what             string
		before, after    bool // cordoned
		pod, owner, want string
	}{
		{"a pod of a ReplicaSet", false, false, "web", "ReplicaSet", ""},
		{"a node that was cordoned", true, true, "web", "ReplicaSet", ""},
		{"a pod without a controller", false, false, "alone", "", "it cannot be drained"},
	} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.NodeSpec{Unschedulable: c.before}}
		cs := fake.NewClientset(node, owned(c.pod, c.owner))
		cs.Resources = []*metav1.APIResourceList{{GroupVersion: "v1"}} // without evictions: pods are deleted
		r := &rollout{o: upgrade.Options{Within: time.Minute, Out: io.Discard}, client: cs}
		if err := r.cordon(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		err := r.drain(t.Context(), "a")
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "default/alone")) {
			t.Errorf("%s: %v", c.what, err)
		}
		n, err := cs.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil || !n.Spec.Unschedulable {
			t.Errorf("%s: not cordoned, %v", c.what, err)
		}
		pods, err := cs.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || (len(pods.Items) == 0) != (c.want == "") {
			t.Errorf("%s: %d pods, %v", c.what, len(pods.Items), err)
		}
		for range 2 { // the second time there is nothing to do
			if err := r.uncordon(t.Context(), "a"); err != nil {
				t.Fatal(err)
			}
			n, err = cs.CoreV1().Nodes().Get(t.Context(), "a", metav1.GetOptions{})
			if _, left := n.Annotations[cordoned]; err != nil || left || n.Spec.Unschedulable != c.after {
				t.Errorf("%s: cordoned %v afterwards, %v, %v", c.what, n.Spec.Unschedulable, n.Annotations, err)
			}
		}
	}
}

// TestBudgets: only what keeps a pod on the node is named.
func TestBudgets(t *testing.T) {
	yes := true
	pod := func(name, node string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, Labels: map[string]string{"app": name},
			OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: name, Controller: &yes}}}, Spec: corev1.PodSpec{NodeName: node}}
	}
	budget := func(namespace, name string, allowed int32, selector *metav1.LabelSelector) *policyv1.PodDisruptionBudget {
		return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: policyv1.PodDisruptionBudgetSpec{Selector: selector}, Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
	}
	app := func(name string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	cs := fake.NewClientset(pod("stuck", "a"), pod("free", "a"),
		budget("x", "never", 0, app("stuck")), budget("x", "soon", 1, app("free")), budget("y", "elsewhere", 0, app("stuck")), budget("x", "of-none", 0, nil))
	r := &rollout{client: cs}
	want := "the PodDisruptionBudget x/never does not allow the eviction of pod stuck"
	if got := r.budgets(t.Context(), &drain.Helper{Ctx: t.Context(), Client: cs}, "a"); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
